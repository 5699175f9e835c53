"""A workload of the blocking peers, as steps on an open connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Loop", "Step"]

Step = Callable[[], int]


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Loop:
    """A workload on an open connection.

    Attributes:
        prepare: returns a step of so many messages.
        finish: ends a sequence of steps, inside the window; returns what it counted beside them, if anything.
        begin: told that the warm-up is over.
        settle: makes sure that nothing is missing, after the window.
        figures: measures further figures, after the window, in about so many seconds.
        limit: the most messages in a step.
    """

    prepare: Callable[[int], Step]
    finish: Callable[[], int | None] = _nothing
    begin: Callable[[], None] = _nothing
    settle: Callable[[], None] = _nothing
    figures: Callable[[float], dict[str, object]] = lambda seconds: {}
    limit: float = float("inf")
