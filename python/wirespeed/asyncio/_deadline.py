"""A deadline over everything that opens a connection.

``asyncio.timeout`` is its model. Python 3.10 does not have that, and its exception does not say what took so long.
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
    """A block of a coroutine that raises ``TimeoutError`` when it takes too long.

    It cancels the task, so what runs in the block must let ``CancelledError`` through. A task that somebody else
    cancels, even at the same time, stays cancelled.

    Args:
        seconds: How long the block may take, ``None`` for no limit.

    Attributes:
        text: Returns the text of the exception: what goes on now.
        explain: Returns what is to be raised instead, ``None`` for nothing. It is called when the time is up.
        is_over: Whether the time is up.
    """

    def __init__(self, seconds: float | None) -> None:
        self.text: Callable[[], str] = _opening
        self.explain: Callable[[], Exception | None] | None = None
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False

    def opening(self) -> None:
        """Let the exception name the opening handshake, as it does in the beginning."""
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
            # Before the explanation, which ends what the text is about.
            late = TimeoutError(self.text())
            raise (self.explain and self.explain()) or late from None

    def _expire(self) -> None:
        self.is_over = True
        self._task.cancel()


# Python 3.10 does not count who cancelled a task: there, of two at the same time, one is lost.


def _cancelling(task: asyncio.Task[object]) -> int:
    return getattr(task, "cancelling", int)()


def _uncancel(task: asyncio.Task[object]) -> int:
    return getattr(task, "uncancel", int)()
