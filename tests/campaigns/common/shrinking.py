"""Makes a failing case as small as possible in bounded time. The caller decides what fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def shrink(case: T, fails: Callable[[T], bool], seconds: float, *simpler: Callable[[T], Iterator[T]]) -> T:
    """Returns the smallest case that was found to fail.

    Args:
        case: A failing case.
        fails: Runs a case and returns whether it fails, in the same way.
        seconds: The time limit; the run that is in progress then is finished.
        simpler: Each yields simpler cases than the given one.
    """
    deadline = time.monotonic() + seconds
    before = None
    while case != before and time.monotonic() < deadline:
        before = case
        for candidates in simpler:
            at = 0
            # A successful step changes the next ones: start again from about there.
            while time.monotonic() < deadline:
                for number, candidate in enumerate(candidates(case)):
                    if number >= at and candidate != case and fails(candidate):
                        case, at = candidate, number
                        break
                    if time.monotonic() > deadline:
                        return case
                else:
                    break
    return case


def fewer(steps: Sequence[Any]) -> Iterator[Any]:
    """Yields the steps without a half, a quarter and so on, at last without a single one: delta debugging."""
    size = max(1, len(steps) // 2)
    while size:
        for at in range(0, len(steps), size):
            yield [*steps[:at], *steps[at + size :]]
        size //= 2
