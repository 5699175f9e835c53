"""Runs cells: ``PYTHONPATH=tests python -m campaigns.faults``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from campaigns.common.program import Log
from campaigns.common.table import Table, Verdict, main
from support import asyncio_tools
from support.certificates import Certificates

from .emulator import Link, reason_to_skip
from .lifetimes import make_clock
from .network import Network
from .table import FAULTS, LEFT_OUT, STAGES, Cell, all_cells, chosen, matching
from .verdict import run_cell


class Faults(Table[Cell]):
    """Every fault at every stage of every API."""

    name = "faults"
    does = "Faults of networks, processes and peers, at each stage of a connection of each API."
    seconds = None
    limit = 60

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--fault", default="*", help=f"which faults, a pattern: {', '.join(FAULTS)}")
        parser.add_argument("--stage", default="*", help=f"at which stages, a pattern: {', '.join(STAGES)}")
        parser.add_argument("--api", default="*", help="of which APIs, a pattern: see --list")
        parser.add_argument(
            "--matrix", choices=["default", "all"], default="default", help="a few cells of each pair (default), or all"
        )

    def cells(self, options: argparse.Namespace) -> list[Cell]:
        cells = [
            cell
            for cell in all_cells()
            if all(map(matching, (cell.fault, cell.stage, str(cell.api)), (options.fault, options.stage, options.api)))
        ]
        return cells if options.matrix == "all" else chosen(cells)

    def rows(self) -> Iterator[str]:
        yield from map(str, all_cells())
        yield from (f"left out: {' '.join(where)}: {why}" for *where, why in LEFT_OUT)

    def run(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[Verdict]:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            certificates = Certificates(folder)
            clock = functools.cache(lambda: make_clock(folder))
            network: Network | None = None
            log = Log()
            # The first loop of libuv opens a pipe for the whole process, which is no leak.
            for loop in asyncio_tools.LOOPS:
                asyncio_tools.run(asyncio_tools.spin, loop=loop)
            for number, cell in enumerate(cells):
                if cell.fault == "loss" and network is None:
                    if (reason := reason_to_skip()) is not None:
                        yield Verdict(f"{cell}: skipped, {reason}", [])
                        continue
                    network = Network(Link())
                    stack.callback(network.stop)
                begun = time.monotonic()
                own = folder / str(number)
                own.mkdir()
                try:
                    run_cell(cell, certificates, own, clock, network)
                    wrong = []
                except Exception:
                    wrong = [traceback.format_exc()]
                wrong += log.since_last()["errors"]
                again = f"--fault {cell.fault} --stage {cell.stage} --api {cell.api} --matrix all"
                yield Verdict(f"{cell}: {time.monotonic() - begun:.2f} s", wrong, again)


if __name__ == "__main__":
    sys.exit(main(Faults()))
