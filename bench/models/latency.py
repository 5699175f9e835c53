"""How long single operations take: every sample is kept, in nanoseconds; what is told of them is in microseconds."""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Iterable, Sequence

from models.content import ContentError

__all__ = ["WINDOW_SHARE", "Latencies"]

# The window in which single operations are timed, beside the one of the rate, in which no clock is read.
WINDOW_SHARE = 0.5

# Samples at most, 32 MB of them: whoever times operations ends its window then.
MOST = 4_000_000

# Per mille, by the names of the contract.
PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}


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

    def figures(self, options: argparse.Namespace | None = None) -> dict[str, object]:
        """Returns mean, percentiles and the greatest; all samples too, if the options are those of a `child`."""
        ordered = self._sorted()
        figures: dict[str, object] = {name: percentile(ordered, share) / 1e3 for name, share in PERCENTILES.items()}
        figures |= {"mean": sum(ordered) / len(ordered) / 1e3, "max": ordered[-1] / 1e3}
        if options is not None and options.child:
            figures["samples"] = ordered
        return figures

    def half(self, name: str) -> dict[str, float]:
        """Returns the figures of one half of round trips: "out" or "in"."""
        ordered = self._sorted()
        return {f"{name}_{one}": percentile(ordered, PERCENTILES[one]) / 1e3 for one in ("p50", "p99", "p999")}

    def _sorted(self) -> list[int]:
        if not self._samples:
            raise ContentError("no operation was timed: the window is too short")
        return sorted(self._samples)


def percentile(ordered: Sequence[int], share: int) -> int:
    """Returns the least sample that so many per mille of all do not exceed."""
    return ordered[max(0, (len(ordered) * share + 999) // 1000 - 1)]
