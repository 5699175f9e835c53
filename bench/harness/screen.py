"""What a run shows while it lasts: results, complaints, progress."""

import contextlib
import time
from collections.abc import Callable, Iterator

from harness.tables import console

__all__ = ["Clock", "Screen"]


class Clock:
    """Estimates how long a run will still take, and corrects the estimate by how long its cells took.

    Args:
        expected: the seconds that the run is expected to take.
        limit: the seconds that it may take; None: no limit.
    """

    def __init__(self, expected: float, limit: float | None = None) -> None:
        self._left = expected
        self._expected = self._taken = 0.0
        self._end = float("inf") if limit is None else time.monotonic() + limit

    def skip(self, expected: float) -> None:
        """Takes off what need not be done."""
        self._left -= expected

    def over(self, expected: float, taken: float) -> None:
        """Takes off a cell that is done, and learns from how long it took."""
        self.skip(expected)
        self._expected += expected
        self._taken += taken

    def has_time_for(self, expected: float) -> bool:
        """Returns whether the run stays within its limit if it takes `expected` seconds more."""
        return time.monotonic() + (self._left + expected) * self._pace <= self._end

    @property
    def _pace(self) -> float:
        return self._taken / self._expected if self._expected else 1.0

    def __str__(self) -> str:
        minutes = round(self._left / 60 * self._pace)
        return f"about {minutes // 60} h {minutes % 60} min"


class Screen:
    """Where results and progress go: to one terminal together, or the results to a pipe, the progress to a terminal."""

    def __init__(self) -> None:
        self.out = console()
        self.errors = console(errors=True)

    def print(self, *objects: object, markup: bool = True, style: str | None = None) -> None:
        """Prints results."""
        self.out.print(*objects, markup=markup, style=style, soft_wrap=any(isinstance(one, str) for one in objects))
        self.out.file.flush()

    def complain(self, text: str) -> None:
        """Prints a line about what is wrong."""
        self.errors.print(f"bench: {text}", markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[Callable[[str], None]]:
        """Shows progress and messages; nothing if there is no terminal."""
        live = self.out if self.out.is_terminal else self.errors
        if not live.is_terminal:
            yield lambda text: None
            return
        with live.status(text) as status:
            yield status.update
