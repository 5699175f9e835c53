"""The command line of the benchmarks: `wirespeed bench`, or `python bench/run.py` without it.

Exit status: 0 if everything that is installed was measured, 1 if something failed (with --enforce also if a bar was
missed), 2 if something unknown was asked for, 130 after Ctrl-C. Method and contract are in METHODOLOGY.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from harness import choice, compare, instructions, running
from harness import scenario as scenarios
from harness.errors import BenchError, UsageError
from harness.tables import console

__all__ = ["main"]


def main(arguments: Sequence[str], program: str) -> int:
    """Runs a command line and returns the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        if arguments[:1] == ["report"]:
            # Only here: matplotlib takes a second to import, and need not be there to measure.
            from harness import report

            return report.main(arguments[1:], f"{program} report")
        options = _parser(program).parse_args(arguments)
        return int(options.run(options))
    except BenchError as error:
        _complain(str(error))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        _complain("interrupted: the children are stopped; with --resume the next run goes on from here")
        return 130


def _parser(program: str) -> argparse.ArgumentParser:
    about = "wirespeed and its rivals, measured in turns, what they receive checked. Method and bias: bench/*.md."
    parser = argparse.ArgumentParser(prog=program, description=about, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="what there is to measure", allow_abbrev=False)
    listing.add_argument("scenario", nargs="*", metavar="SCENARIO", help="one or more; default: all of them")
    listing.set_defaults(run=_list)

    measuring = commands.add_parser("run", help="measure", allow_abbrev=False)
    running.add_arguments(measuring)
    measuring.set_defaults(run=running.run)

    commands.add_parser("report", help="records as a page with pictures, and as Markdown", add_help=False)

    comparing = commands.add_parser("compare", help="two records side by side", description=compare.__doc__)
    compare.add_arguments(comparing)
    comparing.set_defaults(run=compare.run)

    counting = commands.add_parser("instructions", help="instructions a message, against those that are kept")
    counting.description = instructions.__doc__
    instructions.add_arguments(counting)
    counting.set_defaults(run=instructions.run)
    return parser


def _list(options: argparse.Namespace) -> int:
    out = console()
    found = [scenarios.load(name) for name in options.scenario or scenarios.names()]
    for scenario in found:
        out.print(f"[bold]{scenario.name}[/]: {scenario.title}", soft_wrap=True)
        out.print(f"  peers: {', '.join(scenario.peers)}", markup=False, soft_wrap=True)
        for workload in scenario.workloads:
            out.print(f"  {choice.workload_line(workload)}", markup=False, soft_wrap=True)
    return 0


def _complain(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)


def _terminated(signum: int, frame: object) -> None:
    # Unwinds, so that the children are stopped.
    raise SystemExit(128 + signum)
