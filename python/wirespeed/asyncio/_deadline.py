"""A timeout for everything that opens a connection.

It works like ``asyncio.timeout``, which Python 3.10 lacks, and its exception names the step that took too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ._tasks import current_task

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Deadline"]


def _opening() -> str:
    return "timed out during the opening handshake; raise open_timeout to wait longer"


class Deadline:
    """A context manager that raises ``TimeoutError`` in a coroutine when its block takes too long.

    It cancels the task, so code in the block must let ``CancelledError`` through. If the task is also cancelled by
    another caller, even at the same time, it stays cancelled.

    Args:
        seconds: Limit for the block, ``None`` for no limit.

    Attributes:
        text: Function that returns the text of the exception: which step is under way.
        explain: Function that returns an exception to raise instead, or ``None``. It is called when the time is over.
        is_over: Whether the time is over.
    """

    def __init__(self, seconds: float | None) -> None:
        self.text: Callable[[], str] = _opening
        self.explain: Callable[[], Exception | None] | None = None
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False

    def opening(self) -> None:
        """Name the opening handshake in the exception, which is also the initial text."""
        self.text = _opening

    def __enter__(self) -> Self:
        if self._seconds is not None:
            task = current_task()
            if task is None:
                raise RuntimeError("a connection can be opened in a task only")
            self._task = task
            self._cancelling = _cancelling(task)
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.is_over and _uncancel(self._task) <= self._cancelling and exc_type is asyncio.CancelledError:
            # Before `explain`, which ends the step that the text describes.
            late = TimeoutError(self.text())
            raise (self.explain and self.explain()) or late from None

    def _expire(self) -> None:
        self.is_over = True
        self._task.cancel()


# Python 3.10 does not count cancellations: if two happen at the same time, one of them is lost.


def _cancelling(task: asyncio.Task[object]) -> int:
    return getattr(task, "cancelling", int)()


def _uncancel(task: asyncio.Task[object]) -> int:
    return getattr(task, "uncancel", int)()
