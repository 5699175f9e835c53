"""Many attacks as a table: for a screen, for ``SECURITY.md``, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .measuring import Figures
from .table import ENGINES, LOOPS, OURS, ROWS, SENDERS, SERVERS, Row

COLUMNS = ["attack", "bound", "at", "late before, during", "opened in", "memory", "refused, closed"]

# The displayed names of the families of servers.
AT = {
    SERVERS: "all servers", OURS: "all but uvicorn", SENDERS: "engine, asyncio", ENGINES: "engine",
    ENGINES[1:]: "engine, handlers", LOOPS: "asyncio",
}  # fmt: skip


def milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.1f}" if seconds < 0.0995 else f"{seconds * 1e3:.0f}"


def one_line(figures: Figures) -> str:
    honest = figures.honest
    return (
        f"{figures.row} / {figures.kind}: honest p99 {milliseconds(figures.p99_before)} -> "
        f"{milliseconds(honest.get('p99'))} ms of {honest['count']}, "
        f"opened in {milliseconds(honest['opened_last'])} ms, "
        f"{figures.memory:.0f} MiB more ({figures.left.memory:.0f} left), {figures.descriptors} descriptors, "
        f"{figures.lines} lines, {figures.tally}"
    )


def at(row: Row) -> str:
    return AT.get(row.kinds, "clients")


def row_of_markdown(row: Row, all_figures: Sequence[Figures]) -> str:
    """Returns the worst measurement over all kinds, for each figure."""
    before = max((figures.p99_before for figures in all_figures if figures.p99_before is not None), default=None)
    during = max(figures.honest.get("p99", 0.0) for figures in all_figures)
    opened = max(figures.honest["opened_last"] for figures in all_figures)
    memory = max(0.0, *(figures.memory for figures in all_figures))
    refused, closed = (sum(figures.tally.get(name, 0) for figures in all_figures) for name in ("refused", "closed"))
    cells = [
        row.name, row.bound, at(row), f"{milliseconds(before)}, {milliseconds(during)} ms",
        f"{milliseconds(opened)} ms", f"{memory:.0f} MiB", f"{refused:,}, {closed:,}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def markdown(all_figures: Iterable[Figures]) -> str:
    found: dict[str, list[Figures]] = {}
    for figures in all_figures:
        found.setdefault(figures.row, []).append(figures)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [row_of_markdown(row, found[row.name]) for row in ROWS if row.name in found]
    return "\n".join(lines)
