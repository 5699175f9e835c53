"""The figures beside rate and CPU time that a peer may report for a window, by the names of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FIGURES", "KINDS", "RATES", "SHARES", "Kind", "read_figures"]

FIGURES: dict[str, str] = {
    # Latencies in microseconds: of a round trip, an opening, a delivery, whatever the workload counts.
    "mean": "mean us",
    "p50": "p50 us",
    "p90": "p90 us",
    "p99": "p99 us",
    "p999": "p99.9 us",
    "max": "max us",
    # The two halves of a round trip, by timestamps taken in the server.
    "out_p50": "out p50 us",
    "out_p99": "out p99 us",
    "out_p999": "out p99.9 us",
    "in_p50": "in p50 us",
    "in_p99": "in p99 us",
    "in_p999": "in p99.9 us",
    # Of the rates of the single seconds of a window: their standard deviation as a share of their mean.
    "deviation": "deviation",
    # Operations a second that were asked for, where a rate is offered.
    "offered": "offered/s",
    # What a second brings, and how late, at each of two servers: A, where it is published, and B.
    "lesser": "the lesser/s",
    "a_rate": "A/s",
    "b_rate": "B/s",
    "a_p99": "A p99 us",
    "b_p99": "B p99 us",
    # What a broker between them uses of a core.
    "broker_busy": "broker busy",
    # Processes for each of the cores that they run on, where all of them should have one of their own.
    "shared": "processes/core",
    # How often threads of the server waited for a lock, for each million of messages that came in or left.
    "contended": "waits/million",
    # How late another thread of the same process wakes, in microseconds.
    "late_p50": "late p50 us",
    "late_p99": "late p99 us",
    "late_max": "late max us",
    # What another thread of the same process computes, as a share of what it does alone.
    "share": "computed",
    # The rate beside such a thread, as a share of that without.
    "kept": "rate kept",
    # The share of the window in which the load generator had work to do.
    "limited": "load busy",
}
"""Name and heading of each."""


SHARES = frozenset(["deviation", "limited", "share", "kept", "broker_busy"])
"""Those that are shares of one."""

RATES = frozenset(["offered", "lesser", "a_rate", "b_rate"])
"""Those that count what is done in a second."""


@dataclass(frozen=True)
class Kind:
    """What is compared in a workload.

    Attributes:
        figure: the name of the figure that is; None: the rate.
        lower: whether less is better.
    """

    figure: str | None
    lower: bool


KINDS: dict[str, Kind] = {
    # Operations a second.
    "rate": Kind(None, lower=False),
    # Bytes for each of what is counted.
    "memory": Kind(None, lower=True),
    # How many of what is counted there can be.
    "number": Kind(None, lower=False),
    # Microseconds.
    "latency": Kind("p50", lower=True),
    "tail": Kind("p99", lower=True),
    # Operations a second at the one of two servers that has fewer.
    "lesser": Kind("lesser", lower=False),
    "lateness": Kind("late_p50", lower=True),
    # A share of one.
    "share": Kind("share", lower=False),
}
"""By the names that scenarios use for `measures`."""


def read_figures(answer: Mapping[str, object]) -> dict[str, float]:
    """Returns the figures that an answer has.

    Raises:
        TypeError, ValueError: one of them is no number.
    """
    return {name: float(answer[name]) for name in FIGURES if answer.get(name) is not None}  # type: ignore[arg-type]
