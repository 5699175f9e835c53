"""From samples to figures: medians with minimum and maximum, ratios within one round, bars, who wins."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.figures import FIGURES, KINDS, figure_text, value_text
from harness.peers import Sample
from harness.scenario import Bar, Cell, Workload

__all__ = [
    *("NOISE", "SPREAD", "BarResult", "Figure", "Summary"),
    *("judge", "ratio", "spread", "summarize", "unrest"),
]

NOISE = 0.02
"""Below this share a difference is not worth a word, however narrow the ranges are."""

SPREAD = 0.2
"""A cell whose spread is above this is run once more, and marked where that did not help."""

# These are restless by themselves: one slow moment in a window moves them, so that they tell nothing of the neighbours.
RESTLESS = {"tail", "lateness"}


class Figure(NamedTuple):
    """A median and the range of what it is the median of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure | None:
        """Returns the figure of some values; None if there are none."""
        known = list(values)
        return cls(statistics.median(known), min(known), max(known)) if known else None


class Summary(NamedTuple):
    """One peer in one cell: what is compared, rate, CPU microseconds per operation, further figures; or a failure."""

    peer: str
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


class BarResult(NamedTuple):
    """A bar in one cell; no figure if it was not measured."""

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

    @property
    def told(self) -> str:
        """What was measured, in words."""
        return "-" if self.figure is None else self.text(self.figure.median)

    @property
    def wanted(self) -> str:
        """What has to be reached, in words."""
        bar = self.bar
        threshold = bar.at_most if bar.at_least is None else bar.at_least
        assert threshold is not None
        way = "at least" if bar.at_most is None else "at most"
        name = "" if bar.figure is None else FIGURES[bar.figure][0].removesuffix(" us") + " "
        rivals = f" times {' and '.join(bar.versus)}" if bar.versus else ""
        return f"{name}{way} {f'{threshold:g}' if bar.versus else self.text(threshold)}{rivals}"

    def text(self, value: float) -> str:
        """Returns what was measured, as people write it."""
        if self.bar.versus:
            return f"{value:.3f}"
        return value_text(value, self.measures) if self.bar.figure is None else figure_text(value, self.bar.figure)


def summarize(samples: Sequence[Sample]) -> list[Summary]:
    """Returns a summary for each peer of a cell, by name; one failed round spoils a peer's."""
    summaries = []
    for peer in sorted({sample.peer for sample in samples}):
        own = [sample for sample in samples if sample.peer == peer]
        failure = next((sample.failure for sample in own if sample.failure is not None), None)
        good = [] if failure is not None else own
        names = [name for name in FIGURES if any(name in one.figures for one in good)]
        figures = {name: Figure.of(one.figures[name] for one in good if name in one.figures) for name in names}
        summaries.append(
            Summary(
                peer,
                own[0].measures,
                value=Figure.of(sample.value for sample in good),
                rate=Figure.of(sample.rate for sample in good),
                user=Figure.of(sample.user / sample.count * 1e6 for sample in good),
                system=Figure.of(sample.system / sample.count * 1e6 for sample in good),
                server=Figure.of(sample.server / sample.count * 1e6 for sample in good if sample.server is not None),
                figures={name: figure for name, figure in figures.items() if figure is not None},
                failure=failure,
            )
        )
    return summaries


def spread(samples: Sequence[Sample], *, rates: bool = False) -> float:
    """Returns how far the rounds of a cell are apart, as a share: of each peer the range of the middle half of its
    rounds, of all peers the median.

    It is what the machine's neighbours do to all: one peer that is restless by itself does not move it.

    Args:
        samples: those of the cell.
        rates: of the rates, whatever is compared.
    """
    shares = []
    for peer in {sample.peer for sample in samples}:
        values = [one.rate if rates else one.value for one in (_sound(samples, peer) or {}).values()]
        if len(values) > 1 and statistics.median(values):
            low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
            shares.append((high - low) / middle)
    return statistics.median(shares) if shares else 0.0


def unrest(samples: Sequence[Sample]) -> tuple[int, float]:
    """Returns how disturbed a run of a cell was, less being better: how many peers failed, then the spread.

    Where p99 or lateness is compared, that is the spread of the rates.
    """
    failed = {sample.peer for sample in samples if sample.failure is not None}
    return len(failed), spread(samples, rates=any(sample.measures in RESTLESS for sample in samples))


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
    common = [number for number in ours if all(number in one for one in theirs)]
    rounds = [(ours[number].value, best(one[number].value for one in theirs)) for number in common]
    return Figure.of(own / other for own, other in rounds if other)


def judge(workload: Workload, cell: Cell, samples: Sequence[Sample]) -> list[BarResult]:
    """Returns the bars of a workload that stand in this cell, measured or not."""
    return [_measured(bar, workload, cell, samples) for bar in workload.bars if bar.selects(cell)]


def _measured(bar: Bar, workload: Workload, cell: Cell, samples: Sequence[Sample]) -> BarResult:
    figure = None
    if bar.versus:
        figure = ratio(samples, bar.peer, *bar.versus)
    elif summary := next((one for one in summarize(samples) if one.peer == bar.peer), None):
        figure = summary.value if bar.figure is None else summary.figures.get(bar.figure)
    return BarResult(bar, cell, workload.measures, figure)


def _sound(samples: Sequence[Sample], peer: str) -> dict[int, Sample] | None:
    """Returns the samples of a peer by round; None if it did not run, or failed."""
    own = [sample for sample in samples if sample.peer == peer]
    if not own or any(sample.failure is not None for sample in own):
        return None
    return {sample.round: sample for sample in own}
