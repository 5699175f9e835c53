"""The figures beside rate and CPU time that a peer may report for a window, and how people write them."""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["FIGURES", "KINDS", "Kind", "duration_text", "figure_text", "read_figures", "value_text"]

# By name: heading and unit, where that is not microseconds.
FIGURES: dict[str, tuple[str, str]] = {
    # Latencies of a round trip, an opening, a delivery, whatever the workload counts.
    **{name: (f"{name} us", "us") for name in ("mean", "p50", "p90", "p95", "p99")},
    "p999": ("p99.9 us", "us"),
    "max": ("max us", "us"),
    # The two halves of a round trip, by timestamps taken in the server.
    **{f"{way}_{name}": (f"{way} {name} us", "us") for way in ("out", "in") for name in ("p50", "p99", "p999")},
    # The rates of the single seconds of a window.
    **{f"second_{number}": (f"second {number}", "rate") for number in range(1, 6)},
    # Operations a second that were asked for, where a rate is offered.
    "offered": ("offered/s", "rate"),
    # What a second brings, and how late, at each of two servers: A, where it is published, and B.
    "lesser": ("the lesser/s", "rate"),
    **{f"{side}_rate": (f"{side.upper()}/s", "rate") for side in ("a", "b")},
    **{f"{side}_p99": (f"{side.upper()} p99 us", "us") for side in ("a", "b")},
    # What a broker between them uses of a core.
    "broker_busy": ("broker busy", "share"),
    # Processes for each of the cores that they run on, where all of them should have one of their own.
    "shared": ("processes/core", "us"),
    # How often threads of the server waited for a lock, for each million of messages that came in or left.
    "contended": ("waits/million", "us"),
    # How late another thread of the same process wakes.
    **{f"late_{name}": (f"late {name} us", "us") for name in ("p50", "p99", "max")},
    # What another thread of the same process computes, as a share of what it does alone.
    "share": ("computed", "share"),
    # The rate beside such a thread, as a share of that without.
    "kept": ("rate kept", "share"),
    # Bytes of what was encoded.
    "encoded": ("bytes", "rate"),
    # Connections of a storm that the system or the server has reset.
    "not_opened": ("not opened", "rate"),
    # The share of the window in which the load generator had work to do.
    "limited": ("load busy", "share"),
}


class Kind(NamedTuple):
    """What is compared in a workload.

    Attributes:
        figure: the name of the figure that is; None: the rate, or what `unit` says.
        lower: whether less is better.
        unit: "rate", "us", "share" or "bytes".
    """

    figure: str | None
    lower: bool
    unit: str


KINDS: dict[str, Kind] = {
    "rate": Kind(None, lower=False, unit="rate"),
    # Bytes for each of what is counted.
    "memory": Kind(None, lower=True, unit="bytes"),
    "latency": Kind("p50", lower=True, unit="us"),
    "tail": Kind("p99", lower=True, unit="us"),
    # Operations a second at the one of two servers that has fewer.
    "lesser": Kind("lesser", lower=False, unit="rate"),
    "lateness": Kind("late_p50", lower=True, unit="us"),
    "share": Kind("share", lower=False, unit="share"),
}
"""By the names that scenarios use for `measures`."""


def read_figures(answer: Mapping[str, object]) -> dict[str, float]:
    """Returns the figures that an answer has.

    Raises:
        TypeError, ValueError: one of them is no number.
    """
    return {name: float(answer[name]) for name in FIGURES if answer.get(name) is not None}  # type: ignore[arg-type]


def value_text(value: float, measures: str) -> str:
    """Returns what a workload compares as people write it."""
    return _text(value, KINDS[measures].unit)


def figure_text(value: float, name: str) -> str:
    """Returns one of `FIGURES` as people write it."""
    return _text(value, FIGURES[name][1])


def duration_text(microseconds: float) -> str:
    """Returns microseconds with as many digits as they have sense."""
    digits = 3 if microseconds < 1 else 2 if microseconds < 10 else 1 if microseconds < 1000 else 0
    return f"{microseconds:,.{digits}f}"


def _text(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1024:,.1f} KiB"
    if unit == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if unit == "rate" else duration_text(value)
