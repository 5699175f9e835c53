"""The card that every chart stands on: title, legend, the places of its panels, what is written below."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from harness.report.drawing.style import CARD, EDGE, GRID, INK, LIMIT, QUIET, Look
from harness.report.series import ChartData, Line
from harness.report.units import Unit

__all__ = [
    "HATCHED",
    "MARGIN",
    "WIDTH",
    "Box",
    "Card",
    "axes_at",
    "cleaned",
    "round_ticks",
    "settings",
    "svg",
    "width_of",
]

WIDTH = 10.6
MARGIN = 0.4
GUTTER = 0.55
LEGEND_ROW = 0.27
NOTE_ROW = 0.165
# Above a panel, with a title and without; below it, with a title of x and without.
ABOVE, BARE_ABOVE = 0.42, 0.16
BELOW, BARE_BELOW = 0.68, 0.5

HATCHED: dict[str, Any] = {"facecolor": "#ecece8", "edgecolor": LIMIT}

SETTINGS: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    # A reason why something failed may have any character in it.
    "text.parse_math": False,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": QUIET,
    "axes.facecolor": "none",
    "axes.linewidth": 0.9,
    "axes.unicode_minus": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "hatch.linewidth": 0.7,
    # Outlines instead of text: the same wherever it is looked at, and no longer, as each letter is there
    # once.
    "svg.fonttype": "path",
    "svg.hashsalt": "wirespeed",
}


@dataclass(frozen=True)
class Box:
    """Where something stands, in inches from the lower left corner."""

    left: float
    bottom: float
    width: float
    height: float


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """Draws with our settings, whatever those of the user are, and leaves these as they were."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def svg(figure: Figure, name: str) -> str:
    """Returns a figure as SVG without a date, every id in it beginning with the name: several can stand in one page."""
    out = io.StringIO()
    with settings():
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    # The prologue names a document type that a page cannot have in its middle.
    text = text[text.index("<svg") :]
    text = text.replace("DejaVuSans-Bold-", "b").replace("DejaVuSans-", "g")
    text = re.sub(r"scale\([^)]*\)|-?\d+\.\d{3,}", _rounded, text)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return re.sub(r"\n\s*", "\n", text)


def _rounded(match: re.Match[str]) -> str:
    """Returns a number with as many digits as can be seen; the scale of the letters multiplies, and needs them all."""
    text = match[0]
    return text if text.startswith("scale") else f"{float(text):.2f}".rstrip("0").rstrip(".")


@functools.cache
def width_of(text: str, size: float, weight: str = "normal") -> float:
    """Returns the width of a text in inches."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().width) / 72 if text.strip() else 0.0


def cleaned(text: str) -> str:
    """Returns a text in one line, with a question mark for each character that the font does not have."""
    known = _characters()
    return "".join(one if ord(one) in known else "?" for one in " ".join(text.split()))


@functools.cache
def _characters() -> frozenset[int]:
    path = matplotlib.font_manager.findfont(FontProperties(family="DejaVu Sans"))
    return frozenset(get_font(path).get_charmap())


class Card:
    """A figure with all but the panels: `boxes` says where these go, in rows of `columns`."""

    def __init__(self, data: ChartData, look: dict[str, Look], height: float, columns: int, *, lines: bool) -> None:
        self.data = data
        inner = WIDTH - 2 * MARGIN
        notes = _notes(data)
        legend = _legend_rows(data.lines, inner)
        rows = -(-len(data.panels) // columns)
        above = ABOVE if any(panel.title for panel in data.panels) else BARE_ABOVE
        below = BELOW if data.x_title else BARE_BELOW
        top = MARGIN + 0.68 + LEGEND_ROW * len(legend)
        bottom = MARGIN + NOTE_ROW * len(notes)
        self.height = top + rows * (above + height + below) + bottom
        self.figure = Figure(figsize=(WIDTH, self.height))
        self.figure.patch.set_alpha(0)
        self._background()
        self._text(MARGIN, self.height - MARGIN - 0.02, data.chart.title, size=15, weight="bold", va="top")
        self._text(MARGIN, self.height - MARGIN - 0.33, self._subtitle(), size=9.5, color=QUIET, va="top")
        self._legend(legend, look, self.height - MARGIN - 0.66, lines=lines)
        for number, (text, failed) in enumerate(reversed(notes)):
            colour = INK if failed else QUIET
            self._text(MARGIN, MARGIN - 0.08 + number * NOTE_ROW, text, size=7.5, color=colour, va="bottom")
        width = (inner - GUTTER * (columns - 1)) / columns
        self.boxes = [
            Box(
                MARGIN + (number % columns) * (width + GUTTER),
                self.height - top - (number // columns + 1) * (above + height + below) + below,
                width,
                height,
            )
            for number in range(len(data.panels))
        ]
        for box, panel in zip(self.boxes, data.panels, strict=True):
            place = (box.left, box.bottom + box.height + 0.14)
            self._text(*place, panel.title, size=10.5, weight="bold", va="bottom")

    def axes(self, box: Box) -> Axes:
        """Adds axes at a place: a line at the bottom, nothing else."""
        return axes_at(self.figure, box, self.height)

    def write(self, left: float, bottom: float, text: str, **style: Any) -> None:
        """Writes at a place, in inches."""
        self._text(left, bottom, text, **style)

    def _text(self, left: float, bottom: float, text: str, **style: Any) -> None:
        self.figure.text(left / WIDTH, bottom / self.height, cleaned(text), **style)

    def _subtitle(self) -> str:
        units = dict.fromkeys(panel.unit.label for panel in self.data.panels)
        better = dict.fromkeys(panel.unit.direction for panel in self.data.panels)
        label = "latency" if self.data.chart.kind == "percentiles" else " · ".join(units)
        return " · ".join(filter(None, [label, *better, self.data.shared]))

    def _background(self) -> None:
        """A card of its own, so that the chart can stand on white and on black."""
        edge = 0.06
        card = FancyBboxPatch(
            (edge / WIDTH, edge / self.height),
            1 - 2 * edge / WIDTH,
            1 - 2 * edge / self.height,
            boxstyle=f"round,pad=0,rounding_size={0.14 / WIDTH}",
            mutation_aspect=WIDTH / self.height,
            transform=self.figure.transFigure,
            facecolor=CARD,
            edgecolor=EDGE,
            linewidth=1,
            zorder=-10,
        )
        self.figure.add_artist(card)

    def _legend(self, rows: Sequence[Sequence[Line]], look: dict[str, Look], top: float, *, lines: bool) -> None:
        for number, row in enumerate(rows):
            left, middle = MARGIN, top - (number + 0.5) * LEGEND_ROW
            for line in row:
                self._swatch(look[line.label], left, middle, line=lines)
                self._text(left + 0.27, middle, line.label, size=9, weight=_weight(line), va="center")
                left += _legend_width(line)

    def _swatch(self, look: Look, left: float, middle: float, *, line: bool) -> None:
        transform = self.figure.transFigure
        if line:
            xs, ys = [left / WIDTH, (left + 0.22) / WIDTH], [middle / self.height] * 2
            style: dict[str, Any] = {"color": look.colour, "linewidth": 2, "linestyle": look.dashes}
            self.figure.add_artist(Line2D(xs, ys, transform=transform, **style))
            if look.marker != "None":
                self.figure.add_artist(
                    Line2D(
                        [sum(xs) / 2], ys[:1], transform=transform, color=look.colour, marker=look.marker, markersize=5
                    )
                )
            return
        place, width, height = (left / WIDTH, (middle - 0.07) / self.height), 0.18 / WIDTH, 0.14 / self.height
        fill = {"facecolor": look.colour} if look.hatch is None else dict(HATCHED, hatch=look.hatch)
        self.figure.add_artist(Rectangle(place, width, height, transform=transform, linewidth=0.5, **fill))


def axes_at(figure: Figure, box: Box, height: float) -> Axes:
    """Adds axes at a place: a line at the bottom, nothing else."""
    axes = figure.add_axes((box.left / WIDTH, box.bottom / height, box.width / WIDTH, box.height / height))
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8.5)
    axes.set_axisbelow(True)
    axes.grid(visible=False)
    axes.yaxis.grid(visible=True, color=GRID, linewidth=0.8)
    return axes


def round_ticks(axes: Axes, unit: Unit, greatest: float, most: int) -> None:
    """Puts round numbers beside an axis that begins with nothing: round as they are written, in KiB for memory."""
    factor = 1.0
    while greatest >= factor * unit.step:
        factor *= unit.step
    ticks = [tick * factor for tick in MaxNLocator(most).tick_values(0, greatest / factor)]
    # One beyond the end would move the end.
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= axes.get_ylim()[1]]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: unit.tick(value)))


def _legend_width(line: Line) -> float:
    return 0.27 + width_of(cleaned(line.label), 9, _weight(line)) + 0.3


def _weight(line: Line) -> str:
    return "bold" if line.ours else "normal"


def _legend_rows(lines: Sequence[Line], width: float) -> list[list[Line]]:
    """Returns what stands in the legend, in as many rows as it needs."""
    rows: list[list[Line]] = [[]]
    left = width
    for line in lines:
        if rows[-1] and left < _legend_width(line) - 0.3:
            rows.append([])
            left = width
        rows[-1].append(line)
        left -= _legend_width(line)
    return rows


def _notes(data: ChartData) -> list[tuple[str, bool]]:
    """Returns what stands below: what failed first, then where the figures are from."""
    lines = [(line, True) for text in data.failures for line in textwrap.wrap(text, 150)]
    return [*lines, *((line, False) for line in textwrap.wrap(data.source, 150))]
