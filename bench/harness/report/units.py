"""Figures as people read them: what a number counts, its unit, and how many digits it is worth."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import UsageError
from harness.figures import FIGURES, KINDS, RATES, SHARES
from harness.scenario import Workload

__all__ = ["Unit", "bytes_text", "number_text", "ratio_text", "short_text", "time_text", "unit_of"]


@dataclass(frozen=True)
class Unit:
    """What a figure counts.

    Attributes:
        label: its unit, for a heading or beside an axis.
        text: writes a figure short, for a picture.
        full: writes it in full, for a table.
        lower: whether less is better; None: it is neither.
        step: by what a thousand of it is counted: 1024 for memory.
    """

    label: str
    text: Callable[[float], str]
    full: Callable[[float], str]
    lower: bool | None
    step: int = 1000

    def tick(self, value: float) -> str:
        """Writes a round figure beside an axis: without zeros after the point."""
        return re.sub(r"\.0+(?!\d)|(\.\d*[1-9])0+(?!\d)", r"\1", self.text(value))

    @property
    def direction(self) -> str:
        """Which way is better, in words."""
        return {None: "", True: "less is better", False: "more is better"}[self.lower]


def unit_of(workload: Workload, measures: str, figure: str = "value") -> Unit:
    """Returns the unit of a figure: "value", that which is compared, "throughput", or a name of `figures.FIGURES`.

    Raises:
        UsageError: there is no such figure.
    """
    if figure == "value":
        return _unit_of_value(workload, measures)
    if figure == "throughput":
        return Unit("throughput", _throughput_text, _throughput_text, lower=False)
    if figure not in FIGURES:
        raise UsageError(f"unknown figure {figure}: choose from value, throughput, {', '.join(FIGURES)}")
    if figure == "offered":
        return Unit(f"{workload.units}/s offered", short_text, number_text, lower=None)
    if figure in RATES:
        return Unit(f"{workload.units}/s", short_text, number_text, lower=False)
    if figure in ("shared", "contended"):
        return Unit(FIGURES[figure], short_text, number_text, lower=True)
    if figure in SHARES:
        lower = {"deviation": True, "limited": None, "broker_busy": None}.get(figure, False)
        return Unit(FIGURES[figure], _share_text, _share_text, lower)
    return Unit(FIGURES[figure].removesuffix(" us"), time_text, time_text, lower=True)


def _unit_of_value(workload: Workload, measures: str) -> Unit:
    kind = KINDS[measures]
    if measures == "memory":
        return Unit(f"memory for each {workload.unit}", bytes_text, bytes_text, kind.lower, step=1024)
    if measures in ("lateness", "share", "lesser"):
        return unit_of(workload, measures, str(kind.figure))
    if kind.figure is not None:
        heading = FIGURES[kind.figure].removesuffix(" us")
        return Unit(f"{heading} of a {workload.unit}", time_text, time_text, kind.lower)
    if measures == "number":
        return Unit(workload.units, short_text, number_text, kind.lower)
    return Unit(f"{workload.units}/s", short_text, number_text, kind.lower)


def number_text(value: float) -> str:
    """Returns a number in full: 51,158; small ones with the digits that tell something."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def short_text(value: float) -> str:
    """Returns a number with three digits: 51.2k, 4.1M."""
    # Half a unit below the next step rounds up to it: 999.6k is 1M.
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return _digits(value / factor) + letter
    return f"{value:.0f}" if value == int(value) else _digits(value)


def bytes_text(value: float) -> str:
    """Returns bytes of memory: 812 B, 3.4 KiB, 1.2 MiB."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{value:.0f} B"


def time_text(microseconds: float) -> str:
    """Returns a time: 850 ns, 12.3 µs, 1.25 ms, 2 s."""
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "µs")):
        if abs(microseconds) >= factor * 0.9995:
            return f"{_digits(microseconds / factor)} {unit}"
    return f"{_digits(microseconds * 1000)} ns" if microseconds else "0"


def ratio_text(value: float) -> str:
    """Returns a ratio: 0.973, 1.05, 12.4."""
    return (
        f"{value:.3f}"
        if value < 1
        else f"{value:.2f}"
        if value < 10
        else f"{value:,.1f}"
        if value < 100
        else f"{value:,.0f}"
    )


def _throughput_text(value: float) -> str:
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if abs(value) >= factor * 0.9995:
            return f"{_digits(value / factor)} {unit}"
    return f"{value:.0f} B/s"


def _share_text(value: float) -> str:
    return f"{_digits(value * 100)} %"


def _digits(value: float) -> str:
    """Three digits; nothing is just that."""
    if value == 0:
        return "0"
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
