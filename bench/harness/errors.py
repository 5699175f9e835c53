"""The errors that end a benchmark with one line."""

from __future__ import annotations

__all__ = ["BenchError", "UsageError"]


class BenchError(Exception):
    """What was asked cannot be measured; the text says why and what to do."""


class UsageError(BenchError):
    """What was asked does not exist."""
