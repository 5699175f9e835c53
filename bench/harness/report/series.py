"""What a chart shows: the figures of a record, by panel, peer and x. How it is drawn is the business of `drawing`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.report.selection import Chosen
from harness.report.units import Unit, unit_of
from harness.report.wins import is_ours
from harness.results import Figure, Summary
from harness.scenario import Cell, Chart, Option, PeerName, Workload, size_text

__all__ = ["PERCENTILES", "ChartData", "Line", "Panel", "chart_data"]

PERCENTILES = {"p50": "50 %", "p90": "90 %", "p99": "99 %", "p999": "99.9 %", "max": "max"}
"""The figures of a chart of the kind "percentiles", and what is written below them."""


@dataclass(frozen=True)
class Line:
    """What has one colour: a peer, by the name that stands in the chart.

    Attributes:
        label: its name, without what all of the chart share.
        family: its folder, which decides on the colour.
    """

    label: str
    family: str
    ours: bool
    limit: bool


@dataclass
class Panel:
    """One of the parts of a chart, with an axis of its own.

    Attributes:
        key: what it is the part of: workload or group, size, plain or TLS, what is measured.
        title: what sets it apart from the other panels; empty if there are none.
        figures: by label and x.
    """

    key: tuple[str, int, bool, str]
    unit: Unit
    title: str = ""
    figures: dict[tuple[str, Option], Figure] = field(default_factory=dict)

    def of(self, x: Option) -> dict[str, Figure]:
        """Returns the figures at an x, by label."""
        return {label: figure for (label, other), figure in self.figures.items() if other == x}


@dataclass(frozen=True)
class ChartData:
    """A chart with all that is to be seen in it.

    Attributes:
        shared: what all panels have in common, in words.
        xs: the x values in their order, with the text that stands below each.
        x_title: what x is.
        failures: the peers that are not in it, with the reason, each a line.
        source: where the figures are from, in words.
    """

    chart: Chart
    shared: str
    xs: dict[Option, str]
    x_title: str
    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    failures: tuple[str, ...]
    source: str


def chart_data(chosen: Chosen, chart: Chart) -> ChartData | None:
    """Returns what a chart shows of a record; None if the record has nothing of that.

    Raises:
        UsageError: the chart asks for what does not exist, or would draw two figures at one place.
    """
    scenario = chosen.scenario
    if chart.x not in ("size", "workload", "loop") and not any(chart.x in one.options for one in scenario.workloads):
        raise UsageError(f"chart {chart.name}: x is size, workload, loop or an option of a workload, not {chart.x}")
    cells = [cell for cell in chosen.cells if _shows(chart, scenario.workload(cell.workload), cell)]
    summaries = [
        (cell, summary) for cell in cells for summary in chosen.summaries[cell] if _is_asked_for(chart, summary.peer)
    ]
    panels: dict[tuple[str, int, bool, str], Panel] = {}
    drawn: dict[str, None] = {}
    xs: dict[Option, str] = {}
    for cell, summary in summaries:
        workload = scenario.workload(cell.workload)
        key = _panel_key(chart, workload, cell, summary.measures)
        panel = panels.setdefault(key, Panel(key, _unit(chart, workload, summary.measures)))
        for x, text, figure in _points(chart, workload, summary):
            place = (_series(chart, summary.peer), x)
            if place in panel.figures:
                raise UsageError(
                    f"chart {chart.name}: two figures of {summary.peer} for {chart.x} {x}: name less workloads"
                )
            panel.figures[place] = figure
            drawn[summary.peer] = None
            xs[x] = text
    panels = {key: panel for key, panel in panels.items() if panel.figures}
    if not panels:
        return None
    titles, shared = _titles(chosen, list(panels))
    if loop := _shared_loop(drawn):
        shared = ", ".join(filter(None, [shared, f"on {loop}"]))
    labels = _labels(chart, list(drawn))
    for panel, title in zip(panels.values(), titles, strict=True):
        panel.title = title
        panel.figures = {(labels[name], x): figure for (name, x), figure in panel.figures.items()}
    return ChartData(
        chart,
        shared,
        _in_order(chart, xs),
        _x_title(chart) if any(xs.values()) else "",
        tuple(_lines(chart, _ordered(chosen, chart, drawn), labels)),
        tuple(panels.values()),
        tuple(_failures(summaries)),
        _source(chosen, cells),
    )


def _shows(chart: Chart, workload: Workload, cell: Cell) -> bool:
    return (
        any(workload.is_called(name) for name in chart.workloads)
        and chart.tls in (None, cell.tls)
        and (chart.sizes is None or cell.size in chart.sizes)
    )


def _is_asked_for(chart: Chart, peer: str) -> bool:
    return chart.peers is None or any(PeerName.of(peer).is_asked_for(name) for name in chart.peers)


def _panel_key(chart: Chart, workload: Workload, cell: Cell, measures: str) -> tuple[str, int, bool, str]:
    """Returns what sets the panel of a figure apart: all that is not along x."""
    if chart.kind == "percentiles" or chart.x in ("size", "loop"):
        name = workload.name
    else:
        name = "" if chart.x == "workload" else workload.group or workload.runs
    along = chart.x == "size" and chart.kind != "percentiles"
    return name, 0 if along else cell.size, cell.tls, measures


def _unit(chart: Chart, workload: Workload, measures: str) -> Unit:
    try:
        return unit_of(workload, measures, "p50" if chart.kind == "percentiles" else chart.figure)
    except UsageError as error:
        raise UsageError(f"chart {chart.name}: {error}") from None


def _points(chart: Chart, workload: Workload, summary: Summary) -> Iterator[tuple[Option, str, Figure]]:
    """Yields what is drawn of a summary: x, its text, the figure."""
    if chart.kind == "percentiles":
        for name, text in PERCENTILES.items():
            if name in summary.figures:
                yield name, text, summary.figures[name]
        return
    figure = _figure(chart, summary)
    if figure is None:
        return
    if chart.x == "size":
        yield summary.cell.size, size_text(summary.cell.size) if summary.cell.size else "", figure
    elif chart.x == "workload":
        yield workload.name, workload.title, figure
    elif chart.x == "loop":
        loop = PeerName.of(summary.peer).loop or "its own"
        yield loop, loop, figure
    elif chart.x in workload.options:
        value = workload.options[chart.x]
        yield value, f"{value:,}" if type(value) is int else str(value), figure


def _figure(chart: Chart, summary: Summary) -> Figure | None:
    if chart.figure == "value":
        return summary.value
    if chart.figure != "throughput":
        return summary.figures.get(chart.figure)
    rate, size = summary.rate, summary.cell.size
    return None if rate is None else Figure(rate.median * size, rate.low * size, rate.high * size)


def _series(chart: Chart, peer: str) -> str:
    """Returns what is one line: a peer, whatever its loop if that is along x."""
    return peer.partition("@")[0] if chart.x == "loop" and chart.kind != "percentiles" else peer


def _labels(chart: Chart, peers: Sequence[str]) -> dict[str, str]:
    """Returns the name of each line in the chart; a loop that all have in common stands in the subtitle instead."""
    names = dict.fromkeys(_series(chart, peer) for peer in peers)
    if _shared_loop(peers) is None:
        return {name: name for name in names}
    return {name: name.partition("@")[0] for name in names}


def _shared_loop(peers: Iterable[str]) -> str | None:
    loops = {PeerName.of(peer).loop for peer in peers} - {None}
    return loops.pop() if len(loops) == 1 else None


def _ordered(chosen: Chosen, chart: Chart, drawn: Iterable[str]) -> list[str]:
    """Returns the peers in the order that the chart wants, else in that of the scenario."""
    there = set(drawn)
    order = [peer for peer in chosen.peers if peer in there]
    if chart.peers is None:
        return order
    wanted = [peer for name in chart.peers for peer in order if PeerName.of(peer).is_asked_for(name)]
    return list(dict.fromkeys(wanted))


def _lines(chart: Chart, peers: Iterable[str], labels: dict[str, str]) -> Iterator[Line]:
    for name in dict.fromkeys(_series(chart, peer) for peer in peers):
        parts = PeerName.of(name)
        yield Line(labels[name], parts.folder, is_ours(name), any(parts.is_asked_for(limit) for limit in chart.limits))


def _in_order(chart: Chart, xs: dict[Option, str]) -> dict[Option, str]:
    """Returns sizes and numbers from the least on, percentiles in theirs, all else as it came."""
    if chart.kind == "percentiles":
        return {name: text for name, text in PERCENTILES.items() if name in xs}
    if any(isinstance(x, str) for x in xs):
        # What stands before the colon of a title says enough, if it is said of only one.
        brief = {x: text.partition(":")[0] for x, text in xs.items()}
        return brief if len(set(brief.values())) == len(brief) else xs
    return dict(sorted(xs.items(), key=lambda item: float(item[0])))


def _x_title(chart: Chart) -> str:
    if chart.kind == "percentiles":
        return "percentile"
    return {"size": "message size", "workload": "", "loop": "event loop"}.get(chart.x, chart.x)


def _titles(chosen: Chosen, keys: Sequence[tuple[str, int, bool, str]]) -> tuple[list[str], str]:
    """Returns the title of each panel, and what they have in common."""
    texts = [
        [_workload_title(chosen, name), f"{size_text(size)} messages" if size else "", "TLS" if tls else "plain"]
        for name, size, tls, _ in keys
    ]
    varies = [len({text[column] for text in texts}) > 1 for column in range(3)]
    titles = [", ".join(part for part, own in zip(text, varies, strict=True) if own and part) for text in texts]
    # The chart's title says what the one workload is.
    shared = [part for part, own in list(zip(texts[0], varies, strict=True))[1:] if not own and part]
    return titles, ", ".join(shared)


def _workload_title(chosen: Chosen, name: str) -> str:
    """Returns the title of a workload, the name of a group."""
    titles = [workload.title for workload in chosen.scenario.workloads if workload.name == name]
    return titles[0] if titles else name


def _failures(summaries: Iterable[tuple[Cell, Summary]]) -> Iterator[str]:
    where: dict[tuple[str, str], list[Cell]] = {}
    for cell, summary in summaries:
        if summary.failure is not None:
            where.setdefault((summary.peer, summary.failure), []).append(cell)
    for (peer, reason), cells in where.items():
        yield f"{peer} failed: {reason} ({'; '.join(map(str, cells))})"


def _source(chosen: Chosen, cells: Sequence[Cell]) -> str:
    facts = chosen.record.facts
    rounds = max(sample.round for cell in cells for sample in chosen.cells[cell])
    cores = f"{facts['cores']} cores" if "cores" in facts else ""
    about = [facts.get("cpu", ""), cores, facts.get("peers' python", ""), facts.get("time", "").partition("T")[0]]
    figures = f"median of {rounds} rounds, thin lines from the least to the greatest" if rounds > 1 else "one round"
    return " · ".join([figures, *filter(None, about)])
