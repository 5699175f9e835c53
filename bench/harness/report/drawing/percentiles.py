"""How latencies are distributed: a line for each peer, the rare and long ones given as much room as the usual ones."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.drawing.canvas import Box, Card
from harness.report.drawing.lines import LEFT, line, value_axis
from harness.report.drawing.style import GRID, QUIET, looks
from harness.report.series import ChartData
from harness.scenario import Option

__all__ = ["draw_percentiles"]

HEIGHT = 3.4
# -log10 of the share that takes longer: each step to the right is ten times rarer; the longest of all after
# the last.
PLACES: dict[Option, float] = {"p50": 0.301, "p90": 1.0, "p99": 2.0, "p999": 3.0, "max": 3.8}


def draw_percentiles(data: ChartData) -> Figure:
    """Returns the figure of a chart of distributions."""
    look = looks(data.lines)
    card = Card(data, look, HEIGHT, min(len(data.panels), 2), lines=True)
    places = {x: PLACES[x] for x in data.xs}
    for box, panel in zip(card.boxes, data.panels, strict=True):
        axes = card.axes(Box(box.left + LEFT, box.bottom, box.width - LEFT, box.height))
        axes.xaxis.grid(visible=True, color=GRID, linewidth=0.8)
        for one in data.lines:
            line(axes, one, look[one.label], panel, places)
        value_axis(axes, data, panel.unit, logarithmic=True)
        axes.set_xticks(list(places.values()), [data.xs[x] for x in data.xs])
        axes.set_xlim(min(places.values()) - 0.15, max(places.values()) + 0.15)
        middle = box.left + LEFT + (box.width - LEFT) / 2
        card.write(middle, box.bottom - 0.48, data.x_title, size=8.5, color=QUIET, ha="center", va="center")
    return card.figure
