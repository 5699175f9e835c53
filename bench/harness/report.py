"""What a person reads: one table per cell, then the bars."""

from __future__ import annotations

from collections.abc import Sequence

from harness.peers import Sample
from harness.results import BarResult, Figure, ratio, summarize
from harness.scenario import Cell, Scenario, size_text

__all__ = ["bars_text", "cell_text"]


def cell_text(scenario: Scenario, cell: Cell, samples: Sequence[Sample]) -> str:
    """Returns the table of one cell: fastest first, failed ones last."""
    workload = scenario.workload(cell.workload)
    summaries = summarize(samples)
    sound = {summary.peer for summary in summaries if summary.failure is None}
    limit = next((name for name in scenario.limits if name in sound), None)
    subject = scenario.subject if scenario.subject in sound else None

    header = ["", f"{workload.unit}s/s", "min - max", "client us", "user + system", "server us"]
    header += [f"of {limit}"] if limit else []
    header += [f"{subject} is"] if subject else []
    rows, failures = [header], []
    for summary in sorted(summaries, key=lambda one: -one.rate.median if one.rate else 0.0):
        if summary.rate is None or summary.user is None or summary.system is None:
            failures.append(f"  {summary.peer}: FAILED: {summary.failure}")
            continue
        row = [
            summary.peer,
            f"{summary.rate.median:,.0f}",
            f"{summary.rate.low:,.0f} - {summary.rate.high:,.0f}",
            _microseconds(summary.user.median + summary.system.median),
            f"{_microseconds(summary.user.median)} + {_microseconds(summary.system.median)}",
            "?" if summary.server is None else _microseconds(summary.server.median),
        ]
        if limit:
            row.append(_times(ratio(samples, summary.peer, limit)))
        if subject:
            row.append("" if summary.peer == subject else f"{_times(ratio(samples, subject, summary.peer))} x")
        rows.append(row)
    title = f"{workload.title}, {size_text(cell.size)}, {'TLS' if cell.tls else 'plain'}"
    return "\n".join([title, *(_aligned(rows) if len(rows) > 1 else []), *failures, ""])


def bars_text(results: Sequence[BarResult]) -> str:
    """Returns each bar with what was measured and whether that reaches it."""
    if not results:
        return ""
    rows = [["bar", "cell", "measured", "min - max", ""]]
    for result in results:
        show = _times if result.bar.versus else _rate
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
    return "\n".join(["Bars (ratios are medians of the ratios within each round)", *_aligned(rows, left=2), ""])


def _microseconds(value: float) -> str:
    return f"{value:,.3f}" if value < 1 else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def _times(figure: Figure | None, part: str = "median") -> str:
    return "-" if figure is None else f"{getattr(figure, part):.3f}"


def _rate(figure: Figure, part: str = "median") -> str:
    return f"{getattr(figure, part):,.0f}/s"


def _aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
