"""Why a run comes to no result, and the limits of time that see to it that each run ends."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator

__all__ = ["Limit", "RunError", "interrupted_after"]


class RunError(Exception):
    """The run did not come to a result."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """How long something may take, and what it is, for the error."""

    seconds: float
    what: str

    def error(self) -> RunError:
        return RunError(f"{self.what} took more than {self.seconds:.0f} s")


@contextlib.contextmanager
def interrupted_after(seconds: float, error: RunError) -> Iterator[None]:
    """Raise an error in the block when the time is over, whatever it waits for."""

    def expired(number: int, frame: object) -> None:
        raise error

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
