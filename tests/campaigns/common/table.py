"""The runner of tables: runs the cells that the command line selects, and reports their verdicts."""

from __future__ import annotations

import abc
import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from .command import arguments

C = TypeVar("C")


@dataclasses.dataclass
class Verdict:
    """The verdict on one cell.

    Attributes:
        line: The result, in a line.
        complaints: What was wrong; empty: it has passed.
        again: The arguments that repeat it.
        figures: The measurements, for the report.
    """

    line: str
    complaints: list[str]
    again: str = ""
    figures: Any = None


class Table(abc.ABC, Generic[C]):
    """A table of cells.

    Attributes:
        name: The name of the program.
        does: What it does, in a sentence.
        seconds: The default of ``--seconds``; ``None``: it has no such argument.
        limit: The default of ``--limit``.
    """

    name: str
    does: str
    seconds: float | None = 60
    limit = float("inf")

    @abc.abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments that select cells."""

    @abc.abstractmethod
    def cells(self, options: argparse.Namespace) -> Sequence[C]:
        """Returns the selected cells."""

    @abc.abstractmethod
    def rows(self) -> Iterator[str]:
        """Yields a line for each row of the table."""

    @abc.abstractmethod
    def run(self, cells: Sequence[C], options: argparse.Namespace) -> Iterator[Verdict]:
        """Runs cells, and what they need in common; the generator is closed when the time is over."""

    def report(self, verdicts: Sequence[Verdict], options: argparse.Namespace) -> list[str]:
        """Prints all results; returns further complaints."""
        return []


def main(table: Table[Any]) -> int:
    """Runs the selected cells; returns the exit status: 0, or 1 if one has failed."""
    parser = arguments(table.name, table.does, seconds=table.seconds)
    parser.add_argument(
        "--limit", type=float, default=table.limit, help="begin no cell after these seconds (%(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the rows of the table")
    table.add_arguments(parser)
    options = parser.parse_args()
    if options.list:
        print(*table.rows(), sep="\n")
        return 0
    verdicts, failed = [], 0
    begun = time.monotonic()
    running = table.run(table.cells(options), options)
    try:
        for verdict in running:
            verdicts.append(verdict)
            print(verdict.line, file=sys.stderr, flush=True)
            for complaint in verdict.complaints:
                print(f"  FAILED: {complaint}", file=sys.stderr, flush=True)
            if verdict.complaints:
                failed += 1
                print(f"  again: {table.name} {verdict.again}", file=sys.stderr, flush=True)
            if time.monotonic() - begun > options.limit:
                break
    finally:
        running.close()  # type: ignore[attr-defined]
    further = table.report(verdicts, options)
    print(*further, sep="\n", end="\n" if further else "")
    print(f"{len(verdicts)} cells, {failed + len(further)} failed, {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 1 if failed or further or not verdicts else 0
