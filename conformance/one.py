"""Run the Autobahn test suite against one end, and compare the result with what is expected.

    python conformance/one.py client-sync [--cases quick|small|all|PATTERN ...]
    python conformance/one.py --list

``run.py`` runs many. Exit status: 0 as expected, 1 not as expected, 2 the run itself failed, 77 there is no CPython 2.7
to run the suite with."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from runner.cases import run_all
from runner.certificate import Certificate
from runner.ends import ENDS, LIBRARIES, End, chosen
from runner.errors import RunError
from runner.suite import AUTOBAHN, SETS, SKIPPED, Cases, fuzzing_client, fuzzing_server, install
from runner.testees import make
from runner.verdicts import expected_number, judge

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("end", nargs="?", metavar="END", help="which; --list shows all")
    parser.add_argument("--list", action="store_true", help="show the names of all ends")
    parser.add_argument(
        "--cases", nargs="+", default=["small"], metavar="SET", help="quick, small (default), all, or case patterns"
    )
    parser.add_argument("--library", choices=LIBRARIES, default="wirespeed", help="default: %(default)s")
    parser.add_argument("--autobahn", type=Path, default=AUTOBAHN, help="where the suite is")
    parser.add_argument("--report", type=Path, help="where the reports go (default: a folder of report/)")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for the whole run")
    options = parser.parse_args(arguments)
    if not options.list and len(chosen([options.end or ""], options.library)) != 1:
        parser.error(f"no such end of {options.library}: {options.end}; --list shows all")
    return options


def test_client(end: End, options: argparse.Namespace, cases: Cases, report: Path) -> tuple[int, list[str]]:
    """Returns the number of cases that ran, and the problems found beside them."""
    certificate = Certificate.make(report) if end.tls else None
    testee = make(end, options.library, certificate)
    wstest = options.autobahn.resolve() / "bin" / "wstest-local"
    with contextlib.closing(testee), fuzzing_server(wstest, report, cases, certificate) as server:
        ran = run_all(testee, end.agent(options.library), server, options.timeout)
    return ran, testee.problems


@contextlib.contextmanager
def echo_server(end: End, library: str, report: Path) -> Iterator[str]:
    """Run the server under test; yields its URI."""
    program = "engine_server.py" if end.api.startswith("engine") else "echo_server.py"
    command = [sys.executable, str(HERE / program), end.name, "--library", library, "--folder", str(report)]
    with (report / "testee.log").open("w") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    with child:
        try:
            line = child.stdout.readline() if child.stdout is not None else ""
            if not line.strip().isdigit():
                raise RunError(f"the server did not start: see {report / 'testee.log'}")
            yield f"{'wss' if end.tls else 'ws'}://127.0.0.1:{line.strip()}"
        finally:
            if child.stdin is not None:
                child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()


def test_server(end: End, options: argparse.Namespace, cases: Cases, report: Path) -> tuple[int, list[str]]:
    """Returns the number of cases that ran, and the errors that the server logged."""
    with echo_server(end, options.library, report) as uri:
        ran = fuzzing_client(options.autobahn, report, cases, end.agent(options.library), uri, options.timeout)
    return ran, (report / "testee.log").read_text().splitlines()


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        print("\n".join(end.name for end in ENDS))
        return 0
    [end] = chosen([options.end], options.library)
    report = (options.report or HERE / "report" / end.agent(options.library)).resolve()
    status = install(options.autobahn)
    if status:
        if status != SKIPPED:
            print("the suite cannot be installed", file=sys.stderr)
        return status if status == SKIPPED else 2
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)

    known = len(options.cases) == 1 and options.cases[0] in SETS
    cases = SETS[options.cases[0]] if known else Cases(options.cases, [])
    wanted = expected_number(options.cases[0]) if known else None
    test = test_client if end.role == "client" else test_server
    try:
        ran, problems = test(end, options, cases, report)
        return judge(end.agent(options.library), report, ran, wanted, problems, end.api)
    except (RunError, OSError) as exc:
        print(f"\n{exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
