"""From samples to figures: medians with minimum and maximum, ratios within one round, bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.peers import Sample
from harness.scenario import Bar, Cell, Scenario

__all__ = ["BarResult", "Figure", "Summary", "judge", "ratio", "summarize"]


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
    """One peer in one cell: rate per second, CPU microseconds and bytes per operation; or what spoils them."""

    peer: str
    cell: Cell
    rate: Figure | None
    memory: Figure | None
    user: Figure | None
    system: Figure | None
    server: Figure | None
    failure: str | None


@dataclass(frozen=True)
class BarResult:
    """A bar in one cell; no figure if it was not measured."""

    bar: Bar
    cell: Cell
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
                rate=Figure.of(sample.rate for sample in good),
                memory=Figure.of(sample.memory / sample.count for sample in good if sample.memory is not None),
                user=Figure.of(sample.user / sample.count * 1e6 for sample in good),
                system=Figure.of(sample.system / sample.count * 1e6 for sample in good),
                server=Figure.of(sample.server / sample.count * 1e6 for sample in good if sample.server is not None),
                failure=failure,
            )
        )
    return summaries


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
    best = min if any(sample.memory is not None for sample in samples) else max
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
                figure = summary.memory or summary.rate
            results.append(BarResult(bar, cell, figure))
    return results


def _sound(samples: Sequence[Sample], peer: str) -> dict[int, float] | None:
    """Returns the figures of a peer by round; None if it did not run, or failed."""
    own = [sample for sample in samples if sample.peer == peer]
    if not own or any(sample.failure is not None for sample in own):
        return None
    return {sample.round: sample.value for sample in own}
