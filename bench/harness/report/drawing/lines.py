"""Lines: each peer along x, the limits dashed."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.report.drawing.canvas import Box, Card, round_ticks, width_of
from harness.report.drawing.style import QUIET, Look, looks
from harness.report.series import ChartData, Line, Panel
from harness.report.units import Unit
from harness.scenario import Option

__all__ = ["draw_lines", "line", "value_axis"]

HEIGHT = 3.4
# Room for the numbers at the left.
LEFT = 0.55
# From this ratio of the greatest to the least on, a scale is logarithmic.
DECADES = 30.0


def draw_lines(data: ChartData) -> Figure:
    """Returns the figure of a chart of lines."""
    look = looks(data.lines)
    card = Card(data, look, HEIGHT, min(len(data.panels), 2), lines=True)
    places = _places(data)
    for box, panel in zip(card.boxes, data.panels, strict=True):
        axes = card.axes(Box(box.left + LEFT, box.bottom, box.width - LEFT, box.height))
        for one in data.lines:
            line(axes, one, look[one.label], panel, places)
        value_axis(axes, data, panel.unit)
        _x_axis(axes, data, places, box.width - LEFT)
        middle = box.left + LEFT + (box.width - LEFT) / 2
        card.write(middle, box.bottom - 0.48, data.x_title, size=8.5, color=QUIET, ha="center", va="center")
    return card.figure


def line(axes: Axes, one: Line, look: Look, panel: Panel, places: dict[Option, float]) -> None:
    """Draws one peer: its medians joined, the ranges as thin lines; what it has no figure for is left out."""
    points = [(places[x], panel.figures[one.label, x]) for x in places if (one.label, x) in panel.figures]
    if not points:
        return
    order = 4 if one.ours else 2 if one.limit else 3
    xs = [x for x, _ in points]
    axes.plot(
        xs,
        [figure.median for _, figure in points],
        color=look.colour,
        linestyle=look.dashes,
        linewidth=2.6 if one.ours else 1.7,
        marker=look.marker,
        markersize=6 if one.ours else 4.5,
        markeredgewidth=0,
        solid_capstyle="round",
        zorder=order,
        label=one.label,
    )
    lows, highs = [figure.low for _, figure in points], [figure.high for _, figure in points]
    if lows != highs:
        axes.vlines(xs, lows, highs, color=look.colour, linewidth=0.9, zorder=order)


def value_axis(axes: Axes, data: ChartData, unit: Unit, *, logarithmic: bool = False) -> None:
    """Sets the axis of the figures, the same in all panels of a unit: from nothing on, or logarithmic where they are of
    different magnitudes.
    """
    figures = [figure for panel in data.panels if panel.unit.label == unit.label for figure in panel.figures.values()]
    least, greatest = min(figure.low for figure in figures), max(figure.high for figure in figures)
    if least <= 0 or (greatest / least < DECADES and not logarithmic):
        axes.set_ylim(0, greatest * 1.06 or 1)
        round_ticks(axes, unit, greatest, 5)
        return
    axes.set_yscale("log")
    axes.set_ylim(least / 1.25, greatest * 1.25)
    decades = math.log10(greatest / least)
    subs = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.3 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit.tick(value)))


def _places(data: ChartData) -> dict[Option, float]:
    """Returns where each x stands: numbers by their logarithm, all else one step apart."""
    if all(type(x) in (int, float) and float(x) > 0 for x in data.xs) and len(data.xs) > 1:
        return {x: math.log2(float(x)) for x in data.xs}
    return {x: float(number) for number, x in enumerate(data.xs)}


def _x_axis(axes: Axes, data: ChartData, places: dict[Option, float], width: float) -> None:
    """Writes the x values, none where the one before needs the place."""
    least, greatest = min(places.values()), max(places.values())
    margin = max((greatest - least) * 0.04, 0.25)
    axes.set_xlim(least - margin, greatest + margin)
    scale = width / (greatest - least + 2 * margin)
    ticks, texts, taken = [], [], -math.inf
    for x, text in data.xs.items():
        half = width_of(text, 8.5) / 2 + 0.06
        if places[x] * scale - half >= taken:
            ticks.append(places[x])
            texts.append(text)
            taken = places[x] * scale + half
    axes.set_xticks(ticks, texts)
