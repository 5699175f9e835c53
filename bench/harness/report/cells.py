"""The tables of a record: one for each cell, one for the bars, one for the versions."""

from __future__ import annotations

from collections.abc import Sequence

from harness.figures import FIGURES
from harness.peers import Sample
from harness.report.document import Row, Table
from harness.report.selection import Chosen
from harness.report.units import Unit, number_text, ratio_text, unit_of
from harness.report.wins import is_limit, is_ours
from harness.results import BarResult, Figure, Summary, judge, ratio
from harness.scenario import Cell, Scenario, size_text

__all__ = ["bars_table", "cell_table", "cell_title", "failures", "results_of_bars", "versions_table"]


def cell_title(scenario: Scenario, cell: Cell) -> str:
    """Returns the title of a cell: its workload's, the size, plain or TLS."""
    size = f", {size_text(cell.size)}" if cell.size else ""
    return f"{scenario.workload(cell.workload).title}{size}, {'TLS' if cell.tls else 'plain'}"


def cell_table(chosen: Chosen, cell: Cell) -> Table:
    """Returns the table of a cell: the best first, failed ones below it."""
    scenario, samples = chosen.scenario, chosen.cells[cell]
    summaries = sorted(chosen.summaries[cell], key=lambda summary: summary.order)
    sound = [summary for summary in summaries if summary.value is not None]
    columns = _columns(scenario, cell, samples, sound)
    greatest = max((summary.value.median for summary in sound if summary.value is not None), default=0.0)
    rows = tuple(
        Row(
            (summary.peer, *(texts[index] for _, texts in columns)),
            mark="ours" if is_ours(summary.peer) else "limit" if is_limit(scenario, summary.peer) else "",
            share=summary.value.median / greatest if summary.value is not None and greatest else None,
        )
        for index, summary in enumerate(sound)
    )
    unit = unit_of(scenario.workload(cell.workload), samples[0].measures)
    failed = [summary for summary in summaries if summary.value is None]
    return Table(
        cell_title(scenario, cell),
        ("peer", *(head for head, _ in columns)),
        rows,
        note=_note(unit, samples),
        failures=tuple(f"{summary.peer} failed: {summary.failure}" for summary in failed),
        group=scenario.workload(cell.workload).title,
    )


def results_of_bars(chosen: Chosen) -> list[BarResult]:
    """Returns the bars of a record's scenario, measured or not."""
    return judge(chosen.scenario, chosen.record.samples)


def bars_table(chosen: Chosen, results: Sequence[BarResult]) -> Table | None:
    """Returns each bar with what was measured and whether that reaches it; None if there are none."""
    rows = []
    for result in results:
        bar, figure = result.bar, result.figure
        workload = chosen.scenario.workload(result.cell.workload)
        text = (
            ratio_text if bar.versus is not None else unit_of(workload, workload.measures, bar.figure or "value").full
        )
        measured = "-" if figure is None else text(figure.median)
        span = "" if figure is None else f"{text(figure.low)} - {text(figure.high)}"
        mark = {"PASS": "pass", "MISS": "miss"}.get(result.verdict, "")
        title = cell_title(chosen.scenario, result.cell)
        rows.append(Row((bar.peer, bar.text, title, measured, span, result.verdict), mark))
    head = ("peer", "bar", "where", "measured", "min - max", "verdict")
    note = "Ratios are medians of the ratios within each round. Of several rivals, the best counts."
    return Table("Bars", head, tuple(rows), left=3, note=note) if rows else None


def versions_table(chosen: Chosen) -> Table:
    """Returns the versions of the peers that ran."""
    versions: dict[str, list[str]] = {peer: [] for peer in chosen.peers}
    for sample in chosen.record.samples:
        if sample.version and sample.version not in versions[sample.peer]:
            versions[sample.peer].append(sample.version)
    rows = (
        Row((peer, ", ".join(found) or "unknown"), "ours" if is_ours(peer) else "") for peer, found in versions.items()
    )
    return Table("Peers", ("peer", "version"), tuple(rows), left=2)


def failures(chosen: Chosen) -> list[tuple[str, str]]:
    """Returns the peers that failed, each with a line that says why and where."""
    where: dict[tuple[str, str], list[str]] = {}
    for sample in chosen.record.samples:
        if sample.failure is not None:
            places = where.setdefault((sample.peer, sample.failure), [])
            place = cell_title(chosen.scenario, sample.cell)
            if place not in places:
                places.append(place)
    return [(peer, f"{peer} failed: {reason} ({'; '.join(places)})") for (peer, reason), places in where.items()]


def _note(unit: Unit, samples: Sequence[Sample]) -> str:
    rounds = len({sample.round for sample in samples})
    return f"{unit.label}, {unit.direction}; " + (f"median of {rounds} rounds" if rounds > 1 else "one round")


def _columns(
    scenario: Scenario, cell: Cell, samples: Sequence[Sample], sound: Sequence[Summary]
) -> list[tuple[str, list[str]]]:  # fmt: skip
    """Returns the columns right of the peer: a heading, and a text for each peer."""
    workload, measures = scenario.workload(cell.workload), samples[0].measures
    unit = unit_of(workload, measures)
    values = [summary.value for summary in sound]
    columns = [
        (unit.label, [_text(value, unit) for value in values]),
        (
            "min - max",
            ["" if value is None else f"{unit.full(value.low)} - {unit.full(value.high)}" for value in values],
        ),
    ]
    if measures != "rate":
        columns.append((f"{workload.units}/s", [_number(summary.rate) for summary in sound]))
    if workload.throughput and cell.size:
        bytes_a_second = unit_of(workload, measures, "throughput")
        rates = [None if summary.rate is None else summary.rate.median * cell.size for summary in sound]
        columns.append(("throughput", ["" if rate is None else bytes_a_second.text(rate) for rate in rates]))
    columns += [
        ("client µs", [_microseconds(summary.user, summary.system) for summary in sound]),
        ("server µs", [_microseconds(summary.server) for summary in sound]),
    ]
    for name, heading in FIGURES.items():
        if any(name in summary.figures for summary in sound):
            own = unit_of(workload, measures, name)
            texts = [_text(summary.figures.get(name), own) for summary in sound]
            columns.append((heading.removesuffix(" us"), texts))
    peers = [summary.peer for summary in sound]
    limit = next((name for name in scenario.limits if name in peers), None)
    if limit is not None:
        columns.append((f"of {limit}", [_times(ratio(samples, peer, limit)) for peer in peers]))
    subjects = [_subjects(scenario, samples, peer, peers) for peer in peers]
    if any(subjects):
        columns.append((scenario.comparison, subjects))
    return columns


def _subjects(scenario: Scenario, samples: Sequence[Sample], peer: str, peers: Sequence[str]) -> str:
    """Returns what the subject is beside a peer; on each of its loops, if the peer has a loop of its own."""
    subject = scenario.subject_for(peer)
    if subject is not None:
        return f"{_times(ratio(samples, subject, peer))} x" if subject in peers and subject != peer else ""
    loops = {one.partition("@")[2]: one for one in peers if scenario.subject_for(one) == one}
    return ", ".join(f"{_times(ratio(samples, one, peer))} x on {loop}" for loop, one in loops.items())


def _text(figure: Figure | None, unit: Unit) -> str:
    return "-" if figure is None else unit.full(figure.median)


def _number(figure: Figure | None) -> str:
    return "-" if figure is None else number_text(figure.median)


def _times(figure: Figure | None) -> str:
    return "-" if figure is None else ratio_text(figure.median)


def _microseconds(*figures: Figure | None) -> str:
    known = [figure.median for figure in figures if figure is not None]
    if not known:
        return "?"
    value = sum(known)
    return f"{value:,.3f}" if value < 1 else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"
