"""Run the Autobahn test suite against many ends, and compare what comes out with what is on record.

    python conformance/run.py [END ...] [--cases quick|small|all] [--jobs N] [--record]

Ends are names or patterns, all by default; `one.py --list` shows them. Exit status: 0 as expected, 1 not as expected,
2 a run itself failed, 77 there is no CPython 2.7 to run the suite with."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from runner.ends import ENDS, End, chosen
from runner.outcomes import PAGE, differences, record, table
from runner.suite import AUTOBAHN, SETS, SKIPPED, install
from runner.verdicts import OUTCOME

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


def run(end: End, cases: str, reports: Path) -> tuple[int, str, dict[str, Any] | None]:
    """Returns the exit status of one run, its output, and its outcome."""
    report = reports / end.name
    command = [sys.executable, str(HERE / "one.py"), end.name, "--cases", cases, "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    outcome = report / OUTCOME
    known = json.loads(outcome.read_text()) if done.returncode in (0, 1) and outcome.exists() else None
    return done.returncode, done.stdout + (done.stderr if done.returncode else ""), known


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ends", nargs="*", default=["*"], metavar="END", help="names or patterns (default: all)")
    parser.add_argument("--cases", choices=list(SETS), default="all", help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default: %(default)s)")
    parser.add_argument("--record", action="store_true", help=f"keep what came out, and write {PAGE.name} anew")
    parser.add_argument("--reports", type=Path, default=HERE / "report", help="where the reports go")
    options = parser.parse_args(arguments)
    ends = chosen(options.ends, "wirespeed")
    if not ends:
        parser.error(f"no such end; there are {', '.join(end.name for end in ENDS)}")
    status = install(AUTOBAHN)
    if status:
        return status if status == SKIPPED else 2

    failed = 0
    found: dict[str, dict[str, Any]] = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        begun = time.monotonic()
        runs = {pool.submit(run, end, options.cases, options.reports.resolve()): end for end in ends}
        for number, done in enumerate(concurrent.futures.as_completed(runs), 1):
            end = runs[done]
            code, printed, outcome = done.result()
            failed = max(failed, min(code, 2))
            print(f"[{number}/{len(ends)}, {time.monotonic() - begun:.0f} s] {printed.strip()}", flush=True)
            if outcome is not None:
                found[end.name] = outcome
                for line in [] if options.record else differences(end, outcome):
                    failed = max(failed, 1)
                    print(f"  not as on record: {line}", flush=True)
    if options.record and failed == 0:
        record(found)
    print(table(found))
    return failed


if __name__ == "__main__":
    sys.exit(main())
