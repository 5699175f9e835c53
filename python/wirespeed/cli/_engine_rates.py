"""The rates of an engine: differences between two readings of its statistics."""

from __future__ import annotations

from typing import Any

__all__ = ["Rates", "size"]

Figures = dict[str, Any]


class Rates:
    """Differences between two readings, per second.

    Attributes:
        now: The last reading.
        seconds: Seconds between the last two readings.
    """

    def __init__(self, figures: Figures, at: float) -> None:
        self.now = self._before = figures
        self._at = at
        self.seconds = 0.0

    def update(self, figures: Figures, at: float) -> None:
        """Add a reading.

        Args:
            figures: The result of ``engine.stats()``.
            at: Its time in seconds.
        """
        self._before, self.now = self.now, figures
        self.seconds, self._at = at - self._at, at

    def __call__(self, name: str, worker: int | None = None) -> float:
        """Return the increase of a counter per second.

        Args:
            name: Name of the counter.
            worker: Number of a worker, ``None`` for all workers.
        """
        if not self.seconds:
            return 0
        now, before = self._pair(worker)
        return float(now[name] - before[name]) / self.seconds

    def p99(self, name: str, worker: int | None = None) -> str:
        """Return the 99th percentile of a duration since the previous reading, as text.

        Args:
            name: Name of the histogram.
            worker: Number of a worker, ``None`` for all workers.
        """
        now, before = self._pair(worker)
        buckets = now[name]["buckets"]
        past = [0] * len(buckets) if now is before else [count for _, count in before[name]["buckets"]]
        counts = [(bound, count - less) for (bound, count), less in zip(buckets, past, strict=True)]
        wanted = sum(count for _, count in counts) * 0.99
        if not wanted:
            return "-"
        for bound, count in counts:
            wanted -= count
            if wanted <= 0 and bound is not None:
                return f"{bound * 1000:g} ms"
        return "> 5 s"

    def _pair(self, worker: int | None) -> tuple[Figures, Figures]:
        if worker is None:
            return self.now, self._before
        return self.now["workers"][worker], self._before["workers"][worker]

    def line(self) -> str:
        """Return the rates in one line."""
        return (
            f"sessions {self.now['sessions']:,}"
            f"  in {self('messages_received'):,.0f}/s {size(self('bytes_received'))}/s"
            f"  out {self('messages_sent'):,.0f}/s {size(self('bytes_sent'))}/s"
            f"  dropped {self.now['messages_dropped']:,}"
            f"  refused {self.now['handshakes_failed']:,}"
            f"  lag {self.p99('loop_lag')}"
        )


def size(count: float) -> str:
    """Return a number of bytes as text with a unit."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"
