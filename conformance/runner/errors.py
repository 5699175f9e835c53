"""Errors of a run, and the time limits that make each run end."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator

__all__ = ["Limit", "RunError", "interrupted_after"]


class RunError(Exception):
    """The run produced no result."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """A time limit and its name, for the error message."""

    seconds: float
    what: str

    def error(self) -> RunError:
        return RunError(f"{self.what} took more than {self.seconds:.0f} s")


@contextlib.contextmanager
def interrupted_after(seconds: float, error: RunError) -> Iterator[None]:
    """Raises an error in the block when the time is over, even if the block is waiting."""

    def expired(number: int, frame: object) -> None:
        raise error

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
