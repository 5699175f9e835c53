"""Runs attacks: ``PYTHONPATH=python:tests python -m campaigns.attack``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from campaigns.common.table import Table, Verdict, main
from support.certificates import Certificates

from .measuring import Attacked, complaints, defects
from .report import markdown, one_line
from .table import KINDS, ROWS, Row, chosen

# The attacked kind and the attack.
Cell = tuple[str, Row]


class Attacks(Table[Cell]):
    """Attacks on servers and clients."""

    name = "attack"
    does = "Attacks on servers and clients: what honest ones notice, and what it costs."
    seconds = 3

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--kind", default="*", help=f"what to attack, a pattern: {', '.join(KINDS)}")
        parser.add_argument("--row", default="*", help="which attacks, a pattern: see --list")
        parser.add_argument(
            "--matrix", choices=["default", "all"], default="all", help="each attack on all kinds (all), or on some"
        )
        parser.add_argument("--json", action="store_true", help="print all figures as JSON")
        parser.add_argument("--markdown", action="store_true", help="print a table in Markdown, the default")

    def cells(self, options: argparse.Namespace) -> list[Cell]:
        kinds = [kind for kind in KINDS if fnmatch.fnmatch(kind, options.kind)]
        rows = [(kind, row) for kind in kinds for row in chosen(kind, options.matrix)]
        return [(kind, row) for kind, row in rows if fnmatch.fnmatch(row.slug, options.row)]

    def rows(self) -> Iterator[str]:
        return (f"{row.slug}: {row.does} -- {', '.join(row.kinds)}" for row in ROWS)

    def run(self, cells: Sequence[Cell], options: argparse.Namespace) -> Iterator[Verdict]:
        with tempfile.TemporaryDirectory() as folder:
            certificates = Certificates(Path(folder))
            for kind, group in itertools.groupby(cells, lambda cell: cell[0]):
                with Attacked(kind, certificates) as attacked:
                    for _, row in group:
                        figures = attacked.run(row, options.seconds, compare=True)
                        again = f"--kind {kind} --row {row.slug} --seconds {options.seconds:g}"
                        found = [*defects(figures), *complaints(row, figures)]
                        yield Verdict(one_line(figures), found, again, figures)

    def report(self, verdicts: Sequence[Verdict], options: argparse.Namespace) -> list[str]:
        figures = [verdict.figures for verdict in verdicts]
        print(json.dumps(list(map(dataclasses.asdict, figures)), indent=1) if options.json else markdown(figures))
        return []


if __name__ == "__main__":
    sys.exit(main(Attacks()))
