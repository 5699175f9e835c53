"""The command line of the benchmarks: `wirespeed bench`, or `python bench/run.py` without it.

Exit status: 0 if everything that is installed was measured, 1 if something failed,
2 if something unknown was asked for, 130 after Ctrl-C. Method and contract are in METHODOLOGY.md.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from harness import instructions, report, running
from harness.errors import BenchError, UsageError
from harness.scenario import load, names
from harness.tables import console

__all__ = ["main"]


def main(arguments: Sequence[str], program: str) -> int:
    """Runs a command line and returns the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    about = "wirespeed and its rivals, measured in turns, what they receive checked. Method and bias: bench/*.md."
    parser = argparse.ArgumentParser(prog=program, description=about, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="what there is to measure", allow_abbrev=False)
    listing.add_argument("scenario", nargs="*", metavar="SCENARIO", help="one or more; default: all of them")
    listing.set_defaults(run=_list)
    for name, module, text in (
        ("run", running, "measure"),
        ("report", report, "records as tables and pictures of docs and README"),
        ("instructions", instructions, "instructions a message, against those that are kept"),
    ):
        one = commands.add_parser(name, help=text, description=module.__doc__, allow_abbrev=False)
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    try:
        options = parser.parse_args(arguments)
        return int(options.run(options))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("bench: interrupted: the children are stopped; --resume goes on from here", file=sys.stderr)
        return 130


def _list(options: argparse.Namespace) -> int:
    out = console()
    for scenario in [load(name) for name in options.scenario or names()]:
        out.print(f"[bold]{scenario.name}[/]: {scenario.title}", soft_wrap=True)
        out.print(f"  peers: {', '.join(scenario.peers)}", markup=False, soft_wrap=True)
        for workload in scenario.workload:
            cells = workload.cells()
            transports = " and ".join("TLS" if tls else "plain" for tls in dict.fromkeys(cell.tls for cell in cells))
            sizes = sorted({cell.size for cell in cells} - {0})
            bytes_text = f"{', '.join(map(str, sizes))} bytes, " if sizes else ""
            text = f"{workload.name}: {workload.title}; {bytes_text}{transports}"
            options_text = ", ".join(f"{name}={value}" for name, value in workload.options.items())
            out.print(f"  {text}{'; ' if options_text else ''}{options_text}", markup=False, soft_wrap=True)
    return 0


def _terminated(signum: int, frame: object) -> None:
    # Unwinds, so that the children are stopped.
    raise SystemExit(128 + signum)
