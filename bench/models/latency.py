"""How long single operations take: every sample is kept, in nanoseconds; results are in microseconds."""

from array import array
from collections.abc import Iterable
from typing import Any

from models.content import ContentError

__all__ = ["WINDOW_SHARE", "Latencies"]

# The window in which single operations are timed, beside the one of the rate, in which no clock is read.
WINDOW_SHARE = 0.5
# Samples at most, 32 MB of them: a measurement ends its window then.
MOST = 4_000_000
# Per mille, by the names of the contract.
PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}


class Latencies:
    """Samples of one kind of operation.

    Attributes:
        add: takes note of a sample, in nanoseconds.
    """

    def __init__(self, samples: Iterable[int] = ()) -> None:
        self._samples = array("q", samples)
        self.add = self._samples.append

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return len(self._samples) >= MOST

    def clear(self) -> None:
        """Forgets all samples: those of the warm-up."""
        del self._samples[:]

    def figures(self) -> dict[str, Any]:
        """Returns mean, percentiles and the greatest."""
        if not self._samples:
            raise ContentError("no operation was timed: the window is too short")
        ordered = sorted(self._samples)
        # A percentile is the least sample that so many per mille of all do not exceed.
        ranks = {name: max(0, (len(ordered) * share + 999) // 1000 - 1) for name, share in PERCENTILES.items()}
        figures: dict[str, Any] = {name: ordered[rank] / 1e3 for name, rank in ranks.items()}
        return figures | {"mean": sum(ordered) / len(ordered) / 1e3, "max": ordered[-1] / 1e3}
