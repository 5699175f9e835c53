"""Run the Autobahn test suite against a client and compare the result with what is expected.

    python conformance/run_client.py [--api sync] [--cases quick|small|all|PATTERN ...]
    python conformance/run_client.py --api asyncio [--port fd|transport] [--loop asyncio|uvloop|wirespeed] [...]

Exit status: 0 as expected, 1 not as expected, 2 the run itself failed, 77 there is no CPython 2.7 to run the suite
with."""

from __future__ import annotations

import contextlib
import sys

from runner.cases import run_all
from runner.errors import RunError
from runner.options import parse, prepare
from runner.suite import fuzzing_server
from runner.verdicts import judge

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    options, choice, cases, wanted = parse(__doc__ or "", "client", arguments)
    status, report = prepare(options, choice, "client")
    if status:
        return status
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
