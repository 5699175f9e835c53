"""Two records side by side: what became faster, what slower, and whether that is more than the machine's mood."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from harness.errors import UsageError
from harness.figures import KINDS
from harness.peers import Sample
from harness.record import CIRCUMSTANCES, Record, read_csv
from harness.results import NOISE, Figure
from harness.scenario import Cell
from harness.tables import console, table

__all__ = ["add_arguments", "compare_table", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `compare` takes."""
    parser.add_argument("old", type=Path, metavar="OLD", help="a record, as kept in bench/records")
    parser.add_argument("new", type=Path, metavar="NEW", help="another one")
    parser.add_argument("--peer", help="only peers whose names begin with this")
    against = "take ratios to this peer in each record before comparing: what the machine did to both is then left out"
    parser.add_argument("--against", metavar="PEER", help=against)


def run(options: argparse.Namespace) -> int:
    """Runs `compare` with parsed arguments and returns the exit status."""
    old, new = read_csv(options.old), read_csv(options.new)
    console().print(compare_table(old, new, options.peer or "", options.against))
    return 0


def compare_table(old: Record, new: Record, prefix: str = "", against: str | None = None) -> RenderableType:
    """Returns the table of all cells and peers that both records have.

    Args:
        old: the record to compare with.
        new: the record to be compared.
        prefix: what the names of the peers begin with.
        against: a peer to which ratios are taken within each record, round by round; None to compare the figures.

    Raises:
        UsageError: there is nothing that both have.
    """
    lines = [f"{key}: {old.facts[key]} -> {new.facts[key]}" for key in CIRCUMSTANCES if _differs(key, old, new)]
    what = "ratio to " + against if against else "what is compared"
    rows: list[list[str | Text]] = [["cell", "peer", f"old ({what})", "new", "new / old", ""]]
    kept = {(sample.cell, sample.peer) for sample in new.samples}
    for cell, peer in dict.fromkeys((sample.cell, sample.peer) for sample in old.samples):
        if (cell, peer) not in kept or not peer.startswith(prefix) or peer == against:
            continue
        before, after = (_figure(record.samples, cell, peer, against) for record in (old, new))
        if before is None or after is None:
            rows.append([str(cell), peer, _text(before), _text(after), "-", "no figure"])
            continue
        change = after.median / before.median if before.median else float("inf")
        lower = KINDS[next(one.measures for one in new.samples if (one.cell, one.peer) == (cell, peer))].lower
        rows.append([str(cell), peer, _text(before), _text(after), f"{change:.3f}", _verdict(before, after, lower)])
    if len(rows) == 1:
        raise UsageError("the two records have no peer in the same cell" + (f" beside {against}" if against else ""))
    return Group(*lines, *([""] if lines else []), table(rows, left=2))


def _differs(key: str, old: Record, new: Record) -> bool:
    return key in old.facts and key in new.facts and old.facts[key] != new.facts[key]


def _figure(samples: Sequence[Sample], cell: Cell, peer: str, against: str | None) -> Figure | None:
    own = {sample.round: sample for sample in samples if sample.cell == cell and sample.peer == peer}
    if any(sample.failure is not None for sample in own.values()):
        return None
    if against is None:
        return Figure.of(sample.value for sample in own.values())
    others = {sample.round: sample for sample in samples if sample.cell == cell and sample.peer == against}
    if any(sample.failure is not None for sample in others.values()):
        return None
    return Figure.of(own[turn].value / others[turn].value for turn in own.keys() & others.keys() if others[turn].value)


def _verdict(old: Figure, new: Figure, lower: bool) -> Text:
    """Says what is more than noise: ranges that do not touch. `lower`: less is better."""
    change = new.median / old.median if old.median else float("inf")
    if abs(change - 1) < NOISE or (old.low <= new.high and new.low <= old.high):
        return Text("")
    return Text("better", style="green") if (change > 1) != lower else Text("worse", style="red")


def _text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{figure.median:,.3f}" if figure.median < 100 else f"{figure.median:,.0f}"
