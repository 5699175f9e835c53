"""The command line of both runners, and what a run needs before it begins."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from .suite import SETS, SKIPPED, Cases, install
from .testees import APIS, ENGINES, LIBRARIES, LOOPS, PORTS, Choice
from .verdicts import expected_number

__all__ = ["parse", "prepare"]

FOLDER = Path(__file__).resolve().parents[1]


def parse(
    description: str, end: str, arguments: list[str] | None
) -> tuple[argparse.Namespace, Choice, Cases, int | None]:
    """Read the command line.

    Args:
        description: Docstring of the program; its first line is shown.
        end: ``client`` or ``server``: what is tested.
        arguments: The command line, ``None`` for that of the process.

    Returns:
        The options, what to test, the cases, and how many these are, if that is known.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    apis = (*APIS, *ENGINES) if end == "server" else APIS
    parser.add_argument("--api", choices=apis, default="sync", help="default: %(default)s")
    parser.add_argument("--port", choices=PORTS, help="the argument io_port, for --api asyncio (default: fd)")
    parser.add_argument("--loop", choices=LOOPS, help="the event loop, for --api asyncio (default: asyncio)")
    parser.add_argument(
        "--cases", nargs="+", default=["small"], metavar="SET", help="quick, small (default), all, or case patterns"
    )
    parser.add_argument("--library", choices=LIBRARIES, default="wirespeed", help="default: %(default)s")
    parser.add_argument(
        "--autobahn", type=Path, default=FOLDER.parent / "build" / "autobahn", help="where the suite is"
    )
    parser.add_argument("--report", type=Path, help=f"where the reports go (default: a folder of report/{end})")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for the whole run")
    if end == "server":
        parser.add_argument("--tls", action="store_true", help="over TLS, for the engine")
    options = parser.parse_args(arguments)

    port, loop = options.port, options.loop
    tls = end == "server" and options.tls
    if options.api != "asyncio" and (port or loop):
        parser.error("--port and --loop are for --api asyncio")
    if options.library != "wirespeed" and (port or options.api in ENGINES):
        parser.error("--port and engines are for --library wirespeed")
    if tls and options.api not in ENGINES:
        parser.error("--tls is for engines")
    if options.api == "asyncio":
        loop = loop or "asyncio"
        if options.library == "wirespeed":
            port = port or "fd"
    name = options.cases[0]
    if len(options.cases) == 1 and name in SETS:
        cases, wanted = SETS[name], expected_number(name)
    else:
        cases, wanted = Cases(options.cases, []), None
    return options, Choice(options.library, options.api, port, loop, tls), cases, wanted


def prepare(options: argparse.Namespace, choice: Choice, end: str) -> tuple[int, Path]:
    """Install the suite and make the folder of the reports.

    Returns:
        An exit status if this cannot be done, else 0, and the folder.
    """
    report = (options.report or FOLDER / "report" / end / choice.agent).resolve()
    status = install(options.autobahn)
    if status == SKIPPED:
        return SKIPPED, report
    if status != 0:
        print("the suite cannot be installed", file=sys.stderr)
        return 2, report
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)
    return 0, report
