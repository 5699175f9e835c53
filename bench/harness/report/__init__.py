"""The report of the benchmarks: one page with pictures, and the same as Markdown, made of records that are kept."""

from __future__ import annotations

from harness.report.build import build
from harness.report.command import Written, main, write
from harness.report.selection import Chosen, choose, newest

__all__ = ["Chosen", "Written", "build", "choose", "main", "newest", "write"]
