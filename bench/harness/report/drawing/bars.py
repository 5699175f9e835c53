"""Bars: the peers side by side, in a group for each x, the figure on top."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.drawing.canvas import HATCHED, MARGIN, WIDTH, Box, Card, axes_at, round_ticks, width_of
from harness.report.drawing.style import INK, QUIET, Look, looks
from harness.report.series import ChartData, Panel
from harness.scenario import Option

__all__ = ["draw_bars"]

HEIGHT = 2.5
# Between two groups, in bars.
GAP = 1.1
# A bar is never wider than this, in inches.
WIDEST = 0.5
# Groups whose greatest bars differ by more than this have a scale each: otherwise the lower ones could not be
# seen.
APART = 4.0
LABEL = 8.0
# Two panels stand side by side if none has more bars than this.
FEW = 14


def draw_bars(data: ChartData) -> Figure:
    """Returns the figure of a chart of bars."""
    look = looks(data.lines)
    most = max(len(panel.figures) for panel in data.panels)
    card = Card(data, look, HEIGHT, min(len(data.panels), 2) if most <= FEW else 1, lines=False)
    for box, panel in zip(card.boxes, data.panels, strict=True):
        _draw_panel(card, box, panel, look)
    return card.figure


def _draw_panel(card: Card, box: Box, panel: Panel, look: dict[str, Look]) -> None:
    data = card.data
    groups = {x: _group(data, panel, x) for x in data.xs if panel.of(x)}
    bars = sum(len(group) for group in groups.values())
    tops = [max(panel.figures[label, x].median for label in group) for x, group in groups.items()]
    apart = min(tops) * APART < max(tops)
    # Room for the numbers at the left, where there are any.
    left = 0.0 if apart else 0.5
    slot = min((box.width - left) / (bars + GAP * len(groups)), WIDEST)
    extra = (box.width - left - slot * (bars + GAP * len(groups))) / len(groups)
    shared = None if apart else card.axes(Box(box.left + left, box.bottom, box.width - left, box.height))
    texts = [panel.unit.text(figure.median) for figure in panel.figures.values()]
    upright = max(width_of(text, LABEL) for text in texts) > slot * 0.98
    room = (max(width_of(text, LABEL) for text in texts) if upright else 0.12) + 0.14
    start = 0.0
    for x, group in groups.items():
        width = slot * (len(group) + GAP) + extra
        axes = shared
        if axes is None:
            gap = 0.05
            axes = axes_at(
                card.figure, Box(box.left + start + gap, box.bottom, width - 2 * gap, box.height), card.height
            )
            axes.yaxis.set_visible(False)
            axes.yaxis.grid(visible=False)
            _scale(axes, max(panel.figures[label, x].high for label in group), box.height, room)
            axes.set_xlim(start + gap, start + width - gap)
        first = start + (width - slot * len(group)) / 2 + slot / 2
        for number, label in enumerate(group):
            _bar(axes, first + number * slot, slot, panel, (label, x), look[label], upright=upright)
        _group_title(card, box.left + left + start + width / 2, box.bottom - 0.08, data.xs[x], width)
        start += width
    if shared is not None:
        shared.set_xlim(0, box.width - left)
        _scale(shared, _greatest(data, panel), box.height, room)
        round_ticks(shared, panel.unit, _greatest(data, panel), 4)
    x_title = f"{data.x_title}; each with a scale of its own" if apart and data.x_title else data.x_title
    middle = box.left + left + (box.width - left) / 2
    card.write(middle, box.bottom - 0.46, x_title, size=8.5, color=QUIET, ha="center", va="center")


def _group(data: ChartData, panel: Panel, x: Option) -> list[str]:
    """Returns the labels that have a bar at an x, in the order of the legend."""
    there = panel.of(x)
    return [line.label for line in data.lines if line.label in there]


def _greatest(data: ChartData, panel: Panel) -> float:
    """Returns the greatest figure of a panel and those beside it, if it can be seen on the same scale."""
    own = max(figure.high for figure in panel.figures.values())
    there = [
        figure.high for one in data.panels if one.unit.label == panel.unit.label for figure in one.figures.values()
    ]
    return max(there) if own * APART > max(there) else own


def _scale(axes: Axes, greatest: float, height: float, room: float) -> None:
    """Sets the scale from nothing to the greatest, with room for the figures above."""
    axes.set_ylim(0, (greatest or 1) * height / (height - room))
    axes.set_xticks([])


def _bar(
    axes: Axes, middle: float, slot: float, panel: Panel, place: tuple[str, Option], look: Look, *, upright: bool
) -> None:  # fmt: skip
    figure = panel.figures[place]
    fill: dict[str, Any] = {"color": look.colour} if look.hatch is None else dict(HATCHED, hatch=look.hatch)
    axes.bar(
        middle, figure.median, width=slot * 0.86, linewidth=0 if look.hatch is None else 0.5, clip_on=False, **fill
    )
    if figure.high > figure.low:
        axes.vlines(middle, figure.low, figure.high, color=INK, linewidth=0.8, alpha=0.75, clip_on=False)
    axes.annotate(
        panel.unit.text(figure.median),
        (middle, figure.high),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        rotation=90 if upright else 0,
        fontsize=LABEL,
        color=INK,
    )


def _group_title(card: Card, middle: float, top: float, text: str, width: float) -> None:
    """Writes what a group is, in as many lines as its width needs."""
    letter = width_of("n", 9)
    lines = textwrap.wrap(text, max(8, int(width / letter)))[:2]
    left = min(max(middle, MARGIN), WIDTH - MARGIN)
    for number, line in enumerate(lines):
        card.write(left, top - number * 0.15, line, size=9, color=INK, ha="center", va="top")
