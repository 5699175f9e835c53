"""The errors that end a benchmark with one line."""

__all__ = ["BenchError", "ChangedError", "UsageError"]


class BenchError(Exception):
    """What was asked cannot be measured; the text says why and what to do."""


class ChangedError(BenchError):
    """What is measured is no longer what it was when the run began: nothing more can be measured."""


class UsageError(BenchError):
    """What was asked does not exist."""
