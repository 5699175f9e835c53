"""Run the Autobahn test suite against a client and compare the result with what is expected.

    python conformance/run_client.py [--api sync] [--cases quick|small|all|PATTERN ...]
    python conformance/run_client.py --api asyncio [--port fd|transport] [--loop asyncio|uvloop|wirespeed] [...]

Exit status: 0 as expected, 1 not as expected, 2 the run itself failed, 77 there is no CPython 2.7 to run the suite
with."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path

from runner.cases import run_all
from runner.errors import RunError
from runner.suite import SETS, SKIPPED, Cases, fuzzing_server, install
from runner.testees import APIS, LIBRARIES, LOOPS, PORTS, Choice
from runner.verdicts import expected_number, judge

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, Choice]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--api", choices=APIS, default="sync", help="default: %(default)s")
    parser.add_argument("--port", choices=PORTS, help="of wirespeed.connect, for --api asyncio (default: fd)")
    parser.add_argument("--loop", choices=LOOPS, help="the event loop, for --api asyncio (default: asyncio)")
    parser.add_argument(
        "--cases", nargs="+", default=["small"], metavar="SET", help="quick, small (default), all, or case patterns"
    )
    parser.add_argument("--library", choices=LIBRARIES, default="wirespeed", help="default: %(default)s")
    parser.add_argument("--autobahn", type=Path, default=HERE.parent / "build" / "autobahn", help="where the suite is")
    parser.add_argument("--report", type=Path, help="where the reports go (default: a folder of conformance/report)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the whole run")
    options = parser.parse_args(arguments)

    port, loop = options.port, options.loop
    if options.api == "sync" and (port or loop):
        parser.error("--port and --loop are for --api asyncio")
    if options.library != "wirespeed" and port:
        parser.error("--port is for --library wirespeed")
    if options.api == "asyncio":
        loop = loop or "asyncio"
        if options.library == "wirespeed":
            port = port or "fd"
    return options, Choice(options.library, options.api, port, loop)


def main(arguments: list[str] | None = None) -> int:
    options, choice = parse(arguments)
    name = options.cases[0]
    if len(options.cases) == 1 and name in SETS:
        cases, wanted = SETS[name], expected_number(name)
    else:
        cases, wanted = Cases(options.cases, []), None

    status = install(options.autobahn)
    if status == SKIPPED:
        return SKIPPED
    if status != 0:
        print("the suite cannot be installed", file=sys.stderr)
        return 2
    report = (options.report or HERE / "report" / "client" / choice.agent).resolve()
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)
    wstest = options.autobahn.resolve() / "bin" / "wstest-local"
    try:
        testee = choice.make()
        with contextlib.closing(testee), fuzzing_server(wstest, report, cases) as server:
            ran = run_all(testee, choice.agent, server, options.timeout)
        return judge(choice.agent, report, ran, wanted, testee.problems)
    except (RunError, OSError) as exc:
        print(f"\n{exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
