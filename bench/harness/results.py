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
    """One peer in one cell: rate per second, CPU microseconds per operation; or the failure that spoils it."""

    peer: str
    cell: Cell
    rate: Figure | None
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
                user=Figure.of(sample.user / sample.count * 1e6 for sample in good),
                system=Figure.of(sample.system / sample.count * 1e6 for sample in good),
                server=Figure.of(sample.server / sample.count * 1e6 for sample in good if sample.server is not None),
                failure=failure,
            )
        )
    return summaries


def ratio(samples: Sequence[Sample], peer: str, versus: str) -> Figure | None:
    """Returns the rate of one peer as a multiple of another's in the same round; None unless both are sound."""
    rates = []
    for name in (peer, versus):
        own = [sample for sample in samples if sample.peer == name]
        if not own or any(sample.failure is not None for sample in own):
            return None
        rates.append({sample.round: sample.rate for sample in own})
    ours, theirs = rates
    return Figure.of(ours[number] / theirs[number] for number in ours.keys() & theirs.keys())


def judge(scenario: Scenario, samples: Sequence[Sample]) -> list[BarResult]:
    """Returns every bar of the scenario in every cell it selects, measured or not."""
    results = []
    for bar in scenario.bars:
        for cell in filter(bar.selects, scenario.cells()):
            own = [sample for sample in samples if sample.cell == cell]
            if bar.versus is not None:
                figure = ratio(own, bar.peer, bar.versus)
            else:
                figure = next((one.rate for one in summarize(own) if one.peer == bar.peer), None)
            results.append(BarResult(bar, cell, figure))
    return results
