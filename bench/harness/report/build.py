"""Puts a report together: from records to what a page or Markdown says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from harness.errors import UsageError
from harness.report.cells import bars_table, cell_table, failures, results_of_bars, versions_table
from harness.report.document import Part, Picture, Report, Row, Table
from harness.report.selection import Chosen
from harness.report.series import ChartData, chart_data
from harness.report.units import ratio_text, unit_of
from harness.report.wins import FASTER, LEVEL, LIBRARY, SLOWER, Comparison, compared, is_ours
from harness.results import NOISE
from harness.scenario import Cell, Chart, size_text

__all__ = ["Draw", "build"]

Draw = Callable[[ChartData, str], str]
"""Draws a chart, given its data and its name, and returns it as SVG."""


def build(records: Sequence[Chosen], draw: Draw | None) -> Report:
    """Returns the report of some records; without pictures if there is nothing to draw with.

    Raises:
        UsageError: a chart asks for what cannot be drawn.
    """
    comparisons = compared(records)
    anchors: list[str] = []
    parts = []
    for chosen in records:
        anchor = _unused(_plain(chosen.scenario.name), anchors)
        anchors.append(anchor)
        parts.append(_part(chosen, anchor, draw))
    _different([picture.name for part in parts for picture in part.pictures])
    return Report(
        f"{LIBRARY}: benchmarks",
        tuple(_summary(records, comparisons)),
        _score(comparisons),
        tuple(_lost(records)),
        _missed(records),
        _list_of(f"Where {LIBRARY} is slower", SLOWER, comparisons),
        _list_of(f"Where {LIBRARY} is faster", FASTER, comparisons),
        _list_of("No clear difference", LEVEL, comparisons),
        tuple(parts),
    )


def _part(chosen: Chosen, anchor: str, draw: Draw | None) -> Part:
    notes = []
    if not chosen.known:
        notes.append(
            "There is no scenario of this name any more: the workloads have bare names, and there are no charts, no"
            f" bars and no comparisons with {LIBRARY}."
        )
    pictures = []
    for chart in chosen.scenario.charts:
        if draw is None:
            break
        data = chart_data(chosen, chart)
        if data is None:
            notes.append(f"The chart “{chart.title}” is not here: nothing of it was measured.")
            continue
        # Of two records of one scenario, the second has charts of the same names.
        name = _plain(chart.name) + anchor.removeprefix(_plain(chosen.scenario.name))
        picture = Picture(name, chart.title, draw(data, name), _words(chart, data), data.failures, chart.headline)
        pictures.append(picture)
    return Part(
        anchor,
        chosen.scenario.title,
        {
            "record": ", newer in part: ".join(path.name for path in (chosen.path, *chosen.parts)),
            **_circumstances(chosen),
        },
        tuple(notes),
        versions_table(chosen),
        chosen.record.without,
        tuple(line for _, line in failures(chosen)),
        tuple(pictures),
        bars_table(chosen, results_of_bars(chosen)),
        tuple(cell_table(chosen, cell) for cell in chosen.cells),
    )


def _files(chosen: Chosen) -> str:
    return ", newer in part: ".join(path.name for path in (chosen.path, *chosen.parts))


def _circumstances(chosen: Chosen) -> dict[str, str]:
    return {key: text for key, text in chosen.record.facts.items() if not key.startswith("without ")}


def _words(chart: Chart, data: ChartData) -> str:
    """Returns what a chart shows, for those who cannot see it; the figures are in the tables."""
    names = ", ".join(line.label for line in data.lines)
    units = ", ".join(dict.fromkeys(panel.unit.label for panel in data.panels))
    along = f" by {data.x_title}" if data.x_title else ""
    return f"{chart.title}: {units}{along}, for {names}. The figures are in the tables of the report."


def _summary(records: Sequence[Chosen], comparisons: Sequence[Comparison]) -> Iterable[str]:
    machines = dict.fromkeys(_machine(chosen) for chosen in records)
    days = sorted({day for chosen in records if (day := chosen.record.facts.get("time", "").partition("T")[0])})
    when = f", measured {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    yield f"{_many(len(records), 'record')} of {'; '.join(machines)}{when}."
    rivals = [one for one in comparisons if not one.limit]
    if rivals:
        counts = {verdict: sum(one.verdict == verdict for one in rivals) for verdict in (FASTER, LEVEL, SLOWER)}
        yield (
            f"Of {_many(len(rivals), 'comparison')} with rivals, {LIBRARY} is better in {counts[FASTER]}, worse in"
            f" {counts[SLOWER]}, and there is no clear difference in {counts[LEVEL]}."
        )
    results = [result.verdict for chosen in records for result in results_of_bars(chosen)]
    if results:
        yield (
            f"Of {_many(len(results), 'bar')}, {results.count('PASS')} are reached, {results.count('MISS')} missed,"
            f" {results.count('NOT MEASURED')} not measured."
        )
    yield (
        "A comparison is the median of the ratios within each round. There is a difference if all rounds agree on it"
        f" and it is more than {NOISE:.0%}. Of memory and latencies, less is better."
    )


def _machine(chosen: Chosen) -> str:
    facts = chosen.record.facts
    cores = f", {facts['cores']} cores" if "cores" in facts else ""
    return facts.get("cpu", "an unknown machine") + cores


def _lost(records: Sequence[Chosen]) -> Iterable[str]:
    """Yields what has no place among the comparisons: what of ours failed or did not run."""
    for chosen in records:
        title = chosen.scenario.title
        yield from (f"{title}: {line}" for peer, line in failures(chosen) if is_ours(peer))
        for peer, reason in chosen.record.without.items():
            if is_ours(peer):
                yield f"{title}: {peer} was not measured: {reason}"


def _missed(records: Sequence[Chosen]) -> Table:
    """Returns the bars that were missed, a row for each peer and workload, with what was measured."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for chosen in records:
        for result in results_of_bars(chosen):
            if result.verdict == "MISS" and result.figure is not None:
                bar, cell, workload = result.bar, result.cell, chosen.scenario.workload(result.cell.workload)
                text = (
                    ratio_text
                    if bar.versus is not None
                    else unit_of(workload, workload.measures, bar.figure or "value").full
                )
                size = f"{size_text(cell.size)}: " if cell.size else ""
                measured = rows.setdefault((_where(chosen, cell), bar.peer, bar.text), [])
                measured.append(size + text(result.figure.median))
    texts = tuple(Row((*row, "\n".join(measured)), "miss") for row, measured in rows.items())
    return Table("Missed bars", ("where", "peer", "bar", "measured"), texts, left=4)


def _score(comparisons: Sequence[Comparison]) -> Table:
    """Returns how often wirespeed is better or worse than each rival, and by how much at most."""
    rows = []
    for rival in dict.fromkeys(one.rival for one in comparisons):
        own = [one for one in comparisons if one.rival == rival]
        advantages = [one.advantage for one in own]
        counts = (str(sum(one.verdict == verdict for one in own)) for verdict in (FASTER, LEVEL, SLOWER))
        limit = own[0].limit
        label = f"{rival} (a limit)" if limit else rival
        span = (f"{ratio_text(min(advantages))} x", f"{ratio_text(max(advantages))} x")
        rows.append(Row((label, *counts, *span), "limit" if limit else ""))
    head = ("against", "better in", "no clear difference", "worse in", "at worst", "at best")
    note = f"How many times better {LIBRARY} is, at worst and at best: below 1 it is worse."
    return Table("Rival by rival", head, tuple(rows), note=note)


def _list_of(title: str, verdict: str, comparisons: Sequence[Comparison]) -> Table:
    """Returns the comparisons with a verdict, a row for each workload, transport and pair: what is most so comes first,
    what is no library but a limit last.
    """
    rows: dict[tuple[str, str, bool], list[Comparison]] = {}
    for one in comparisons:
        if one.verdict == verdict:
            pair = f"{one.ours}\nagainst {one.rival}{' (a limit)' if one.limit else ''}"
            rows.setdefault((_where(one.chosen, one.cell), pair, one.limit), []).append(one)

    def order(item: tuple[tuple[str, str, bool], list[Comparison]]) -> tuple[bool, float]:
        advantages = [one.advantage for one in item[1]]
        return item[0][2], -max(advantages) if verdict == FASTER else min(advantages)

    texts = (Row((*key[:2], "\n".join(map(_ratio, own)))) for key, own in sorted(rows.items(), key=order))
    return Table(title, ("where", "who", f"{LIBRARY} is"), tuple(texts), left=3)


def _where(chosen: Chosen, cell: Cell) -> str:
    title = chosen.scenario.workload(cell.workload).title
    return f"{chosen.scenario.title}\n{title}, {'TLS' if cell.tls else 'plain'}"


def _ratio(one: Comparison) -> str:
    figure = one.ratio
    size = f"{size_text(one.cell.size)}: " if one.cell.size else ""
    span = f" ({ratio_text(figure.low)} - {ratio_text(figure.high)})" if figure.high > figure.low else ""
    return f"{size}{ratio_text(figure.median)} x{span}" + (", less is better" if one.lower else "")


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _plain(name: str) -> str:
    """Returns a name that can be that of a file and of an id."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower() or "record"


def _unused(name: str, used: Sequence[str]) -> str:
    """Returns the name, with a number if it is taken."""
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name}-{number}"
    return found


def _different(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two charts are called {name}: the name of a chart is that of its file, and unique")
