"""The charts as SVG, by matplotlib, without its global state: the same data give the same bytes."""

from __future__ import annotations

from harness.report.drawing.canvas import svg
from harness.report.drawing.figure import figure

__all__ = ["figure", "svg"]
