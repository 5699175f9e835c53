"""The figure of a chart, by its kind."""

from __future__ import annotations

from matplotlib.figure import Figure

from harness.report.drawing.bars import draw_bars
from harness.report.drawing.canvas import settings
from harness.report.drawing.lines import draw_lines
from harness.report.drawing.percentiles import draw_percentiles
from harness.report.series import ChartData

__all__ = ["figure"]

KINDS = {"bars": draw_bars, "lines": draw_lines, "percentiles": draw_percentiles}


def figure(data: ChartData) -> Figure:
    """Returns the figure of a chart."""
    with settings():
        return KINDS[data.chart.kind](data)
