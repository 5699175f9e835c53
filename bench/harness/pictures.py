"""The pictures of the README: bars with a figure at each, as SVG whose text is text, on light and on dark pages."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["Line", "svg"]

# Both contrast with white and with black.
INK, OURS, OTHERS, LIMIT = "#808890", "#d9480f", "#7f96ad", "#b0b7bf"
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "wirespeed", "font.family": "sans-serif", "font.size": 11}


class Line(NamedTuple):
    """One bar: who, how much, in words, and whether that is wirespeed or a limit and no rival."""

    label: str
    value: float
    text: str
    ours: bool
    limit: bool


def svg(title: str, below: str, lines: Sequence[Line]) -> str:
    """Draws bars, the first on top.

    Args:
        title: what stands above.
        below: what is compared, below the bars.
        lines: the bars.
    """
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(7.6, 0.85 + 0.36 * len(lines)), layout="constrained")
        axes = figure.subplots()
        colors = [OURS if line.ours else LIMIT if line.limit else OTHERS for line in lines]
        bars = axes.barh([line.label for line in lines], [line.value for line in lines], color=colors, height=0.66)
        axes.bar_label(bars, [line.text for line in lines], padding=4, color=INK)
        axes.invert_yaxis()
        axes.margins(x=0.14)
        axes.set_title(title, loc="left", color=INK, fontweight="bold")
        axes.set_xlabel(below, loc="left", color=INK)
        axes.tick_params(length=0, labelcolor=INK)
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Title": title})
        return out.getvalue()
