"""Colours and marks: wirespeed in one of its own, each rival in the same one in every chart."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.colors import to_rgb

from harness.report.series import Line

__all__ = ["CARD", "EDGE", "GRID", "INK", "LIMIT", "QUIET", "Look", "looks"]

CARD = "#fdfdfb"
EDGE = "#d9d9d3"
GRID = "#e6e6e0"
INK = "#1c1c1a"
QUIET = "#6a6a64"
LIMIT = "#b4b4ae"

OURS = "#e2470b"

# Told apart by those who do not see all colours, too: beside the hue, neighbours in a chart differ in
# lightness. After Paul Tol's "muted", with more of the same kind.
RIVALS = {
    "picows": "#332288",
    "picows-cython": "#2f6fde",
    "picows.websockets": "#6bbde6",
    "websocket-rs": "#117733",
    "aiohttp": "#44aa99",
    "websockets": "#d4b94e",
    "tornado": "#999933",
    "curl_cffi": "#882255",
    "httpx-ws": "#cc88bb",
    "websocket-client": "#5b7fa6",
    "ws4py": "#b7a58a",
    "beast": "#3f4a54",
    "uvicorn": "#1f6f8b",
    "socketify": "#66a61e",
    "wse": "#7d4e24",
}

# For those that are not in the table.
OTHERS = ("#4477aa", "#228833", "#aa3377", "#66ccee", "#bbaa33", "#555577")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASHES = ((0, (5, 3)), (0, (1.5, 2)), (0, (6, 2, 1.5, 2)))

# Further ways of using the same library: with a share of the card's colour, or of the ink's.
SHADES = ((CARD, 0.0), (CARD, 0.42), (INK, 0.4), (CARD, 0.66), (INK, 0.66), (CARD, 0.8), (INK, 0.82), (CARD, 0.25))


@dataclass(frozen=True)
class Look:
    """How a line of a chart looks."""

    colour: tuple[float, float, float]
    marker: str
    dashes: tuple[float, tuple[float, ...]] | str
    hatch: str | None


def looks(lines: Sequence[Line]) -> dict[str, Look]:
    """Returns the look of each line, by label."""
    found: dict[str, Look] = {}
    used: dict[str, int] = {}
    limits = 0
    for line in lines:
        if line.limit:
            hatch = ("////", "\\\\\\\\", "xxxx")[limits % 3]
            found[line.label] = Look(to_rgb(LIMIT), "None", DASHES[limits % len(DASHES)], hatch)
            limits += 1
            continue
        family = "" if line.ours else _family(line.family)
        turn = used.get(family, 0)
        used[family] = turn + 1
        marker = MARKERS[(list(used).index(family) + turn) % len(MARKERS)]
        found[line.label] = Look(_shade(OURS if line.ours else _colour(family), turn), marker, "solid", None)
    return found


def _family(folder: str) -> str:
    """Returns the library of a peer: its server and its blocking client have the same colour."""
    return folder.removesuffix("-server").removesuffix("-sync")


def _colour(family: str) -> str:
    # Not `hash`, which differs from one process to the next.
    return RIVALS.get(family) or OTHERS[zlib.crc32(family.encode()) % len(OTHERS)]


def _shade(colour: str, turn: int) -> tuple[float, float, float]:
    """Returns a colour for the first, second, third ... way of using a library."""
    other, share = SHADES[turn % len(SHADES)]
    red, green, blue = (
        part * (1 - share) + mixed * share for part, mixed in zip(to_rgb(colour), to_rgb(other), strict=True)
    )
    return red, green, blue
