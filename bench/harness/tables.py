"""What a person reads in the terminal: one table per cell, then the bars."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.figures import FIGURES, KINDS, RATES, SHARES
from harness.peers import Sample
from harness.results import BarResult, Figure, Summary, ratio, summarize
from harness.scenario import Bar, Cell, Scenario, Workload, size_text

__all__ = ["bars_table", "cell_table", "console", "duration_text", "number_text", "table", "text_of", "value_text"]

# Of the figures of a window those that a table shows; records have all of them.
SHOWN = ("p50", "p99", "p999", "out_p50", "out_p99", "in_p50", "in_p99", "late_p50", "late_p99", "late_max")
SHOWN += ("a_rate", "b_rate", "a_p99", "b_p99", "broker_busy", "contended")
SHOWN += ("share", "kept", "deviation", "offered", "limited")
# As wide as a table may become where nobody's window is in the way: in a pipe or a file.
WIDE = 240
# Above this share of the time at work the load generator, not the server, is what was measured.
LIMIT_OF_LOAD = 0.9


def console(*, errors: bool = False) -> Console:
    """Returns the console for results, or for complaints and progress; a pipe gets whole lines, no colours."""
    stream = sys.stderr if errors else sys.stdout
    return Console(stderr=errors, highlight=False, width=None if stream.isatty() else WIDE)


def text_of(renderable: RenderableType) -> str:
    """Returns what would be printed, without colours; no line ends with a space."""
    out = io.StringIO()
    Console(file=out, width=WIDE, highlight=False, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def table(rows: Sequence[Sequence[str | Text]], left: int = 1) -> Table:
    """Returns a table of a heading and rows whose first `left` columns are text and whose others are numbers."""
    result = Table(box=None, pad_edge=True, padding=(0, 0, 0, 2), header_style="dim")
    for number, heading in enumerate(rows[0]):
        result.add_column(heading, justify="left" if number < left else "right", no_wrap=number >= left)
    for row in rows[1:]:
        result.add_row(*row)
    return result


def cell_table(scenario: Scenario, cell: Cell, samples: Sequence[Sample]) -> RenderableType:
    """Returns the table of one cell: the best first, failed ones last."""
    workload = scenario.workload(cell.workload)
    summaries = summarize(samples)
    sound = {summary.peer for summary in summaries if summary.failure is None}
    limit = next((name for name in scenario.limits if name in sound), None)
    subjects = {peer: subject for peer in sound if (subject := scenario.subject_for(peer)) in sound}
    shown = [name for name in SHOWN if any(name in summary.figures for summary in summaries)]
    if KINDS[workload.measures].figure in shown:
        shown.remove(str(KINDS[workload.measures].figure))

    rows: list[list[str | Text]] = [_header(scenario, workload, shown, limit, with_ratio=bool(subjects))]
    failures: list[Text] = []
    for summary in sorted(summaries, key=lambda one: one.order):
        if summary.value is None:
            failures.append(Text(f"  {summary.peer}: FAILED: {summary.failure}", style="red"))
            continue
        row = _row(workload, cell, summary, shown)
        if limit:
            row.append(_times(ratio(samples, summary.peer, limit)))
        if subjects:
            row.append(_ratio_text(samples, summary.peer, subjects.get(summary.peer, summary.peer), workload))
        rows.append(row)
    busy = [one.peer for one in summaries if "limited" in one.figures and one.figures["limited"].median > LIMIT_OF_LOAD]
    notes = [f"  the load generator was the limit of {', '.join(busy)}: the server could do more"] if busy else []
    crowded = max((one.figures["shared"].median for one in summaries if "shared" in one.figures), default=1.0)
    notes += [f"  up to {crowded:g} processes shared a core: a core each needs more of them"] if crowded > 1 else []
    size = f", {size_text(cell.size)}" if cell.size else ""
    title = Text(f"{workload.title}{size}, {'TLS' if cell.tls else 'plain'}", style="bold")
    return Group(title, *([table(rows)] if len(rows) > 1 else []), *notes, *failures, "")


def _header(
    scenario: Scenario, workload: Workload, shown: Sequence[str], limit: str | None, *, with_ratio: bool
) -> list[str | Text]:
    rate = f"{workload.units}/s"
    kind = KINDS[workload.measures]
    names = {"memory": "each", "number": workload.units}
    header: list[str | Text] = ["", FIGURES[kind.figure] if kind.figure else names.get(workload.measures, rate)]
    header += [
        "min - max",
        *([] if workload.measures == "rate" else [rate]),
        *(["MB/s"] if workload.throughput else []),
    ]
    header += [FIGURES[name] for name in shown]
    header += ["client us", "user + system", "server us"]
    header += [f"of {limit}"] if limit else []
    return header + ([scenario.comparison] if with_ratio else [])


def _row(workload: Workload, cell: Cell, summary: Summary, shown: Sequence[str]) -> list[str | Text]:
    value, rate, user, system = summary.value, summary.rate, summary.user, summary.system
    assert value is not None
    assert rate is not None
    assert user is not None
    assert system is not None
    show = lambda number: value_text(number, workload.measures)  # noqa: E731
    row: list[str | Text] = [summary.peer, show(value.median), f"{show(value.low)} - {show(value.high)}"]
    row += [] if workload.measures == "rate" else [number_text(rate.median)]
    row += [f"{rate.median * cell.size / 1e6:,.1f}"] if workload.throughput else []
    row += [_figure_text(name, summary.figures.get(name)) for name in shown]
    row += [
        duration_text(user.median + system.median),
        f"{duration_text(user.median)} + {duration_text(system.median)}",
        "?" if summary.server is None else duration_text(summary.server.median),
    ]
    return row


def _ratio_text(samples: Sequence[Sample], peer: str, subject: str, workload: Workload) -> Text:
    """Says how many times what a rival does the subject does; where that is worse, it is red."""
    if subject == peer:
        return Text("")
    figure = ratio(samples, subject, peer)
    if figure is None:
        return Text("-")
    worse = figure.median > 1 if KINDS[workload.measures].lower else figure.median < 1
    return Text(f"{figure.median:.3f} x", style="red" if worse else "green")


def bars_table(results: Sequence[BarResult]) -> RenderableType:
    """Returns each bar with what was measured and whether that reaches it."""
    if not results:
        return ""
    styles = {"PASS": "green", "MISS": "red", "NOT MEASURED": "yellow"}
    rows: list[list[str | Text]] = [["bar", "cell", "measured", "min - max", ""]]
    for result in results:
        bar, figure = result.bar, result.figure
        show = functools.partial(_bar_text, bar, result.measures)
        rows.append(
            [
                f"{bar.peer}: {bar.text}",
                str(result.cell),
                "-" if figure is None else show(figure.median),
                "" if figure is None else f"{show(figure.low)} - {show(figure.high)}",
                Text(result.verdict, style=styles[result.verdict]),
            ]
        )
    title = Text("Bars (ratios are medians of the ratios within each round)", style="bold")
    return Group(title, table(rows, left=2), "")


def _bar_text(bar: Bar, measures: str, number: float) -> str:
    if bar.versus:
        return f"{number:.3f}"
    return value_text(number, measures) if bar.figure is None else figure_text(number, bar.figure)


def value_text(value: float, measures: str) -> str:
    """Returns what a workload compares as people write it."""
    if measures == "memory":
        return f"{value / 1024:,.1f} KiB"
    if KINDS[measures].figure in SHARES:
        return f"{value:.1%}"
    return number_text(value) if measures in ("rate", "number", "lesser") else duration_text(value)


def number_text(value: float) -> str:
    """Returns a number without its fractions."""
    return f"{value:,.0f}"


def duration_text(microseconds: float) -> str:
    """Returns microseconds with as many digits as they have sense."""
    digits = 3 if microseconds < 1 else 2 if microseconds < 10 else 1 if microseconds < 1000 else 0
    return f"{microseconds:,.{digits}f}"


def _figure_text(name: str, figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return figure_text(figure.median, name)


def figure_text(value: float, name: str) -> str:
    """Returns one of `figures.FIGURES` as people write it."""
    if name in SHARES:
        return f"{value:.1%}"
    return number_text(value) if name in RATES else duration_text(value)


def _times(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.median:.3f}"
