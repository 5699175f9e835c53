"""What a person reads: one table per cell, then the bars."""

from __future__ import annotations

from collections.abc import Sequence

from harness.peers import Sample
from harness.results import BarResult, Figure, Summary, ratio, summarize
from harness.scenario import Cell, Scenario, size_text

__all__ = ["aligned", "bars_text", "cell_text"]


def cell_text(scenario: Scenario, cell: Cell, samples: Sequence[Sample]) -> str:
    """Returns the table of one cell: fastest first, failed ones last."""
    workload = scenario.workload(cell.workload)
    summaries = summarize(samples)
    sound = {summary.peer for summary in summaries if summary.failure is None}
    limit = next((name for name in scenario.limits if name in sound), None)
    memory = workload.measures == "memory"

    header = ["", "each" if memory else f"{workload.unit}s/s", "min - max"]
    header += [f"{workload.unit}s/s"] if memory else []
    header += ["client us", "user + system", "server us"]
    header += [f"of {limit}"] if limit else []
    subjects = {peer: subject for peer in sound if (subject := scenario.subject_for(peer)) in sound}
    header += [f"{scenario.subject.partition('@{loop}')[0]} is"] if subjects else []
    rows, failures = [header], []
    for summary in sorted(summaries, key=_order):
        if summary.rate is None or summary.user is None or summary.system is None:
            failures.append(f"  {summary.peer}: FAILED: {summary.failure}")
            continue
        figure, show = (summary.memory, _kibibytes) if summary.memory else (summary.rate, _number)
        row = [summary.peer, show(figure.median), f"{show(figure.low)} - {show(figure.high)}"]
        row += [_number(summary.rate.median)] if memory else []
        row += [
            _microseconds(summary.user.median + summary.system.median),
            f"{_microseconds(summary.user.median)} + {_microseconds(summary.system.median)}",
            "?" if summary.server is None else _microseconds(summary.server.median),
        ]
        if limit:
            row.append(_times(ratio(samples, summary.peer, limit)))
        if subjects:
            subject = subjects.get(summary.peer, summary.peer)
            row.append("" if subject == summary.peer else f"{_times(ratio(samples, subject, summary.peer))} x")
        rows.append(row)
    size = f", {size_text(cell.size)}" if cell.size else ""
    title = f"{workload.title}{size}, {'TLS' if cell.tls else 'plain'}"
    return "\n".join([title, *(aligned(rows) if len(rows) > 1 else []), *failures, ""])


def bars_text(results: Sequence[BarResult]) -> str:
    """Returns each bar with what was measured and whether that reaches it."""
    if not results:
        return ""
    rows = [["bar", "cell", "measured", "min - max", ""]]
    for result in results:
        show = _times if result.bar.versus else _rate if result.bar.at_most is None else _bytes
        figure = result.figure
        rows.append(
            [
                f"{result.bar.peer}: {result.bar.text}",
                str(result.cell),
                "-" if figure is None else show(figure),
                "" if figure is None else f"{show(figure, 'low')} - {show(figure, 'high')}",
                result.verdict,
            ]
        )
    return "\n".join(["Bars (ratios are medians of the ratios within each round)", *aligned(rows, left=2), ""])


def _order(summary: Summary) -> float:
    """The best first."""
    if summary.memory is not None:
        return summary.memory.median
    return -summary.rate.median if summary.rate else 0.0


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _kibibytes(value: float) -> str:
    return f"{value / 1024:,.1f} KiB"


def _microseconds(value: float) -> str:
    return f"{value:,.3f}" if value < 1 else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def _times(figure: Figure | None, part: str = "median") -> str:
    return "-" if figure is None else f"{getattr(figure, part):.3f}"


def _rate(figure: Figure, part: str = "median") -> str:
    return f"{getattr(figure, part):,.0f}/s"


def _bytes(figure: Figure, part: str = "median") -> str:
    return _kibibytes(getattr(figure, part))


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Returns the lines of a table whose first `left` columns are text and whose others are numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
