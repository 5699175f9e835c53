"""Decides whether a noisy series rises over time, by medians, which single peaks do not move."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

# The surplus of rising over falling pairs of figures: a tenth would be noise, all is a pure leak.
STEADY = 0.3


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The allowed rise of a series at the end: a number, or a part of its median."""

    number: float
    part: float

    def of(self, median: float) -> float:
        return max(self.number, self.part * median)


# By kind of figure. A leak of one object for each connection is thousands of them after minutes.
TOLERANCES = {
    "memory": Tolerance(6.0, 0.08),
    "descriptors": Tolerance(8, 0.1),
    "threads": Tolerance(4, 0.1),
    "tasks": Tolerance(8, 0.1),
    "objects": Tolerance(16, 0.1),
    "latency": Tolerance(100.0, 1.0),
    "opening": Tolerance(200.0, 1.0),
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict after the warm-up: the median, the rise, and whether that is too much."""

    median: float
    rise: float
    steady: float
    rises: bool


def warm_up(seconds: float) -> float:
    """Returns the seconds that are not judged: a quarter of the run, but a minute and a half as far as half of the run
    has it.

    Everything is made for the first time then: buffers, caches, pools, a heap for each thread.
    """
    return max(seconds / 4, min(90.0, seconds / 2))


def judge(kind: str, times: Sequence[float], figures: Sequence[float]) -> Verdict:
    """Judges a series.

    Args:
        kind: A key of ``TOLERANCES``.
        times: Seconds.
        figures: The figures at these times.

    Returns:
        The verdict. The rise is the slope of Theil and Sen times the judged time; ``steady`` is Kendall's tau, from -1
            to 1.
    """
    if not figures:
        return Verdict(0.0, 0.0, 0.0, False)
    begin = times[0] + warm_up(times[-1] - times[0])
    points = [(time, figure) for time, figure in zip(times, figures, strict=True) if time >= begin]
    median = statistics.median(figure for _, figure in points)
    pairs = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in itertools.combinations(points, 2)]
    slopes = [difference / span for span, difference in pairs if span > 0]
    if not slopes:
        return Verdict(median, 0.0, 0.0, False)
    rise = statistics.median(slopes) * (points[-1][0] - points[0][0])
    steady = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
    return Verdict(median, rise, steady, rise > TOLERANCES[kind].of(median) and steady > STEADY)
