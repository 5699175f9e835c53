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
from harness.record import CIRCUMSTANCES, Record, read
from harness.results import NOISE, Figure, ratio, summarize
from harness.tables import console, table

__all__ = ["add_arguments", "compare_table", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `compare` takes."""
    parser.add_argument("old", type=Path, metavar="OLD", help="a record, as kept in bench/records")
    parser.add_argument("new", type=Path, metavar="NEW", help="another one")
    parser.add_argument("--peer", default="", help="only peers whose names begin with this")
    against = "take ratios to this peer in each record before comparing: what the machine did to both is then left out"
    parser.add_argument("--against", metavar="PEER", help=against)


def run(options: argparse.Namespace) -> int:
    """Runs `compare` with parsed arguments and returns the exit status."""
    console().print(compare_table(read(options.old), read(options.new), options.peer, options.against))
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
    both = [key for key in CIRCUMSTANCES if key in old.facts and key in new.facts]
    lines = [f"{key}: {old.facts[key]} -> {new.facts[key]}" for key in both if old.facts[key] != new.facts[key]]
    what = "ratio to " + against if against else "what is compared"
    rows: list[list[str | Text]] = [["cell", "peer", f"old ({what})", "new", "new / old", ""]]
    earlier, later = old.cells(), new.cells()
    for cell in [cell for cell in earlier if cell in later]:
        peers = {one.peer for one in earlier[cell]} & {one.peer for one in later[cell]} - {against}
        for peer in sorted(peer for peer in peers if peer.startswith(prefix)):
            before, after = (_figure(samples[cell], peer, against) for samples in (earlier, later))
            if before is None or after is None or not before.median:
                rows.append([str(cell), peer, _text(before), _text(after), "-", "no figure"])
                continue
            change = after.median / before.median
            verdict = _verdict(before, after, lower=KINDS[later[cell][0].measures].lower)
            rows.append([str(cell), peer, _text(before), _text(after), f"{change:.3f}", verdict])
    if len(rows) == 1:
        raise UsageError("the two records have no peer in the same cell" + (f" beside {against}" if against else ""))
    return Group(*lines, *([""] if lines else []), table(rows, left=2))


def _figure(samples: Sequence[Sample], peer: str, against: str | None) -> Figure | None:
    if against is not None:
        return ratio(samples, peer, against)
    return next(one.value for one in summarize(samples) if one.peer == peer)


def _verdict(old: Figure, new: Figure, *, lower: bool) -> Text:
    """Says what is more than noise: ranges that do not touch. `lower`: less is better."""
    change = new.median / old.median
    if abs(change - 1) < NOISE or (old.low <= new.high and new.low <= old.high):
        return Text("")
    return Text("better", style="green") if (change > 1) != lower else Text("worse", style="red")


def _text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{figure.median:,.3f}" if figure.median < 100 else f"{figure.median:,.0f}"
