"""From samples to figures: medians with minimum and maximum, ratios within one round, bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.figures import KINDS
from harness.peers import Sample
from harness.scenario import Bar, Cell, Scenario

__all__ = ["NOISE", "BarResult", "Figure", "Summary", "judge", "ratio", "summarize"]


NOISE = 0.02
"""Below this share a difference is not worth a word, however narrow the ranges are."""


@dataclass(frozen=True)
class Figure:
    """A median and the range of what it is the median of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure | None:
        """Returns the figure of some values; None if there are none."""
        known = list(values)
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True)
class Summary:
    """One peer in one cell: what is compared, rate per second, CPU microseconds per operation, further figures by name;
    or what spoils them.
    """

    peer: str
    cell: Cell
    measures: str
    value: Figure | None
    rate: Figure | None
    user: Figure | None
    system: Figure | None
    server: Figure | None
    figures: dict[str, Figure]
    failure: str | None

    @property
    def order(self) -> float:
        """The best first, if sorted by this."""
        if self.value is None:
            return float("inf")
        return self.value.median if KINDS[self.measures].lower else -self.value.median


@dataclass(frozen=True)
class BarResult:
    """A bar in one cell of a workload that measures that; no figure if it was not measured."""

    bar: Bar
    cell: Cell
    measures: str
    figure: Figure | None

    @property
    def verdict(self) -> str:
        """PASS, MISS or NOT MEASURED."""
        if self.figure is None:
            return "NOT MEASURED"
        return "PASS" if self.bar.passes(self.figure.median) else "MISS"


def summarize(samples: Sequence[Sample]) -> list[Summary]:
    """Returns a summary for each peer of a cell, in the order in which they ran; one failed round spoils a peer's."""
    summaries = []
    for peer in dict.fromkeys(sample.peer for sample in samples):
        own = [sample for sample in samples if sample.peer == peer]
        failure = next((sample.failure for sample in own if sample.failure is not None), None)
        good = [] if failure is not None else own
        summaries.append(
            Summary(
                peer,
                own[0].cell,
                own[0].measures,
                value=Figure.of(sample.value for sample in good),
                rate=Figure.of(sample.rate for sample in good),
                user=Figure.of(sample.user / sample.count * 1e6 for sample in good),
                system=Figure.of(sample.system / sample.count * 1e6 for sample in good),
                server=Figure.of(sample.server / sample.count * 1e6 for sample in good if sample.server is not None),
                figures=_figures(good),
                failure=failure,
            )
        )
    return summaries


def _figures(samples: Sequence[Sample]) -> dict[str, Figure]:
    names = dict.fromkeys(name for sample in samples for name in sample.figures)
    found = {name: Figure.of(one.figures[name] for one in samples if name in one.figures) for name in names}
    return {name: figure for name, figure in found.items() if figure is not None}


def ratio(samples: Sequence[Sample], peer: str, *versus: str) -> Figure | None:
    """Returns the figure of one peer as a multiple of another's in the same round; None unless both are sound.

    Of several others the best counts, round by round: those that failed have no figure to compare with. One that did
    not run at all might have been the best, so then there is no ratio.
    """
    ours = _sound(samples, peer)
    there = {sample.peer for sample in samples}
    theirs = [one for name in versus if (one := _sound(samples, name)) is not None]
    if ours is None or not theirs or not there.issuperset(versus):
        return None
    best = min if any(KINDS[sample.measures].lower for sample in samples) else max
    rounds = [
        (ours[number], best(one[number] for one in theirs)) for number in ours if all(number in one for one in theirs)
    ]
    return Figure.of(own / other for own, other in rounds if other)


def judge(scenario: Scenario, samples: Sequence[Sample]) -> list[BarResult]:
    """Returns every bar of the scenario in every cell it selects, measured or not."""
    results = []
    for bar in scenario.bars:
        for cell in filter(bar.selects, scenario.cells()):
            own = [sample for sample in samples if sample.cell == cell]
            figure = None
            if bar.versus is not None:
                figure = ratio(own, bar.peer, *bar.rivals)
            elif summary := next((one for one in summarize(own) if one.peer == bar.peer), None):
                figure = summary.value if bar.figure is None else summary.figures.get(bar.figure)
            results.append(BarResult(bar, cell, scenario.workload(cell.workload).measures, figure))
    return results


def _sound(samples: Sequence[Sample], peer: str) -> dict[int, float] | None:
    """Returns the figures of a peer by round; None if it did not run, or failed."""
    own = [sample for sample in samples if sample.peer == peer]
    if not own or any(sample.failure is not None for sample in own):
        return None
    return {sample.round: sample.value for sample in own}
