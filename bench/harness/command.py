"""The command line of the benchmarks, `python -m bench`. Method and contract are in METHODOLOGY.md."""

import argparse
import signal
import sys
from collections.abc import Sequence

from harness import instructions, report, running
from harness.errors import BenchError, UsageError
from harness.lengths import HEADLINE_ROUNDS, Lengths
from harness.plan import plan
from harness.scenario import load, names
from harness.screen import Clock
from harness.tables import console

__all__ = ["main"]

ABOUT = """\
Compares wirespeed with other WebSocket libraries on this machine.
The libraries take turns, and their messages are checked."""
MORE = """\
examples:
  python -m bench list --headline              the cells of docs/benchmarks.md, and how long they take
  python -m bench run --quick                  run every library once, to show that it works
  python -m bench run --headline --resume      measure the cells of docs/benchmarks.md
  python -m bench run clients --workload round-trip --size 256 --no-record
  python -m bench report --clone .             write docs/benchmarks.md and the figures in README.md

exit status:
  0  everything that is installed was measured
  1  something failed
  2  an argument is wrong
  130  the run was interrupted

The method is in bench/METHODOLOGY.md, known bias in bench/BIAS.md."""


def main(arguments: Sequence[str]) -> int:
    """Runs a command line and returns the exit status."""
    signal.signal(signal.SIGTERM, _terminated)
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=ABOUT, epilog=MORE, formatter_class=plain, allow_abbrev=False
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = commands.add_parser("list", help="show the scenarios, their workloads and libraries", allow_abbrev=False)
    listing.add_argument("scenario", nargs="*", metavar="SCENARIO", help="default: all scenarios")
    listing.add_argument("--headline", action="store_true", help="show the cells of docs/benchmarks.md, and their time")
    listing.set_defaults(run=_list)
    for name, module, text in (
        ("run", running, "measure"),
        ("report", report, "make docs/benchmarks.md, the figures in README.md and all tables from the records"),
        ("instructions", instructions, "count the instructions for each message on the hot paths (needs valgrind)"),
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
    scenarios = [load(name) for name in options.scenario or names()]
    if options.headline:
        found = [(one, plan().headline(one, one.jobs())) for one in scenarios]
        for scenario, jobs in found:
            for job in jobs:
                out.print(f"{scenario.name}: {job.cell}: {', '.join(job.peers)}", markup=False, soft_wrap=True)
        expected = sum(Lengths(headline=True).expected(one, job) for one, jobs in found for job in jobs)
        out.print(f"{sum(len(jobs) for _, jobs in found)} cells, {HEADLINE_ROUNDS} rounds, {Clock(expected)}")
        return 0
    for scenario in scenarios:
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
