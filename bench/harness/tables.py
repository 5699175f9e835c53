"""What a person reads in the terminal: one table per cell, then the bars."""

import io
import sys
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.figures import FIGURES, KINDS, duration_text, figure_text, value_text
from harness.peers import Sample
from harness.results import SPREAD, BarResult, Summary, ratio, spread, summarize
from harness.scenario import Job, Scenario, size_text

__all__ = ["apart_text", "bars_table", "cell_table", "console", "table", "text_of"]

# Of the figures of a window those that a table does not show; records have all of them.
HIDDEN = {"mean", "p90", "max", "out_p999", "in_p999", "lesser", "shared"}
# The width of a table in a pipe or a file, which have no window.
WIDE = 400
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


def apart_text(samples: Sequence[Sample]) -> str:
    """Says how many rounds a cell has, and how far they are apart; `(!)` if that is too far."""
    apart, rounds = spread(samples), max(sample.round for sample in samples)
    return f"{rounds} round{'s' * (rounds > 1)}, {apart:.0%} apart{' (!)' * (apart > SPREAD)}"


def cell_table(scenario: Scenario, job: Job, samples: Sequence[Sample]) -> RenderableType:
    """Returns the table of one cell: the best first, failed ones last."""
    workload, cell = job.workload, job.cell
    kind = KINDS[workload.measures]
    summaries = summarize(samples)
    sound = {summary.peer for summary in summaries if summary.failure is None}
    limit = next((name for name in scenario.limits if name in sound), None)
    subjects = {peer: subject for peer in sound if (subject := scenario.subject_for(peer, workload)) in sound}
    shown = [name for name in FIGURES if any(name in summary.figures for summary in summaries)]
    shown = [name for name in shown if name not in HIDDEN and name != kind.figure]

    columns = [
        "",
        FIGURES[kind.figure][0] if kind.figure else {"memory": "each"}.get(workload.measures, f"{workload.units}/s"),
        "min - max",
        *([] if workload.measures == "rate" else [f"{workload.units}/s"]),
        *(["MB/s"] if cell.size else []),
        *(FIGURES[name][0] for name in shown),
        *("client us", "user + system", "server us"),
        *([f"of {limit}"] if limit else []),
        *(["wirespeed is"] if subjects else []),
    ]
    rows: list[list[str | Text]] = [list(columns)]
    failures: list[Text] = []
    for summary in sorted(summaries, key=lambda one: one.order):
        if summary.failure is not None:
            failures.append(Text(f"  {summary.peer}: FAILED: {summary.failure}", style="red"))
            continue
        row: list[str | Text] = [*_row(summary, shown, job)]
        if limit:
            figure = ratio(samples, summary.peer, limit)
            row.append("-" if figure is None else f"{figure.median:.3f}")
        if subjects:
            row.append(_ratio_text(samples, summary.peer, subjects.get(summary.peer, summary.peer), lower=kind.lower))
        rows.append(row)
    busy = [one.peer for one in summaries if "limited" in one.figures and one.figures["limited"].median > LIMIT_OF_LOAD]
    notes = [f"  the load generator was the limit of {', '.join(busy)}: the server could do more"] if busy else []
    crowded = max((one.figures["shared"].median for one in summaries if "shared" in one.figures), default=1.0)
    notes += [f"  up to {crowded:g} processes shared a core: a core each needs more of them"] if crowded > 1 else []
    size = f", {size_text(cell.size)}" if cell.size else ""
    title = f"{workload.title}{size}, {'TLS' if cell.tls else 'plain'}"
    apart = Text(f" ({apart_text(samples)})", style="dim")
    return Group(Text(title, style="bold") + apart, *([table(rows)] if len(rows) > 1 else []), *notes, *failures, "")


def _row(summary: Summary, shown: Sequence[str], job: Job) -> list[str]:
    value, rate, user, system = summary.value, summary.rate, summary.user, summary.system
    if value is None or rate is None or user is None or system is None:
        return [summary.peer]
    measures = summary.measures
    return [
        summary.peer,
        value_text(value.median, measures),
        f"{value_text(value.low, measures)} - {value_text(value.high, measures)}",
        *([] if measures == "rate" else [f"{rate.median:,.0f}"]),
        *([f"{rate.median * job.cell.size / 1e6:,.1f}"] if job.cell.size else []),
        *(figure_text(summary.figures[name].median, name) if name in summary.figures else "-" for name in shown),
        duration_text(user.median + system.median),
        f"{duration_text(user.median)} + {duration_text(system.median)}",
        "?" if summary.server is None else duration_text(summary.server.median),
    ]


def _ratio_text(samples: Sequence[Sample], peer: str, subject: str, *, lower: bool) -> Text:
    """Says how many times what a rival does the subject does; where that is worse, it is red."""
    figure = None if subject == peer else ratio(samples, subject, peer)
    if figure is None:
        return Text("" if subject == peer else "-")
    worse = figure.median > 1 if lower else figure.median < 1
    return Text(f"{figure.median:.3f} x", style="red" if worse else "green")


def bars_table(results: Sequence[BarResult]) -> RenderableType:
    """Returns each bar with what was measured and whether that reaches it."""
    if not results:
        return ""
    styles = {"PASS": "green", "MISS": "red", "NOT MEASURED": "yellow"}
    rows: list[list[str | Text]] = [["bar", "cell", "measured", "min - max", ""]]
    for result in results:
        figure, verdict = result.figure, Text(result.verdict, style=styles[result.verdict])
        span = "" if figure is None else f"{result.text(figure.low)} - {result.text(figure.high)}"
        rows.append([f"{result.bar.peer}: {result.wanted}", str(result.cell), result.told, span, verdict])
    title = Text("Bars (ratios are medians of the ratios within each round)", style="bold")
    return Group(title, table(rows, left=2), "")
