"""The clients of an asyncio server that are in the opening handshake: places for them, and who has to give one back.

What is done with them is :mod:`wirespeed._serving.handshake_limiter`; here are the loop, its clock and its tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from .._handshake.admission import Entry
from .._handshake.pending_handshake import has_unread
from .._native import LoopState
from .._serving.handshake_limiter import HandshakeLimiterBase
from ..typing import LoggerLike

__all__ = ["HandshakeLimiter", "InTask"]


class HandshakeLimiter(HandshakeLimiterBase):
    """Who is in the opening handshake, as far as it waits for the client.

    Args:
        loop: The event loop.
        limit: How many there may be.
        logger: For those that had to go.

    Attributes:
        freed: Called when there is a place again after there was none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, logger: LoggerLike) -> None:
        super().__init__(loop.time, limit, logger)
        self.freed: Callable[[], None] | None = None
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Runs while there are too many.
        self._trimmer: asyncio.TimerHandle | None = None

    def leave(self, entry: Entry | None) -> None:
        """Take a place back.

        Args:
            entry: The place, ``None`` for none; nothing happens if somebody else has it.
        """
        if entry is not None:
            was_full = self._admission.is_full
            if self._admission.remove(entry) and was_full and self.freed is not None:
                self.freed()

    def finish(self) -> None:
        """Log what was not yet, and nothing more."""
        for timer in (self._timer, self._trimmer):
            if timer is not None:
                timer.cancel()
        self._timer = self._trimmer = None
        super().finish()

    def _trim_later(self) -> None:
        if self._trimmer is None and (left := self._trim_in(self._clock())) is not None:
            self._trimmer = self._loop.call_later(left, self._trim)

    def _trim(self) -> None:
        self._trimmer = None
        self.trim()
        self._trim_later()

    def _tell_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tell)

    def _tell(self) -> None:
        self.tell()
        if self._due is not None:
            self._tell_at(self._due)


class InTask:
    """A client whose opening handshake is made by a task of the server.

    Args:
        sock: Its socket.
        tasks: Those of the server, in which the task is.

    Attributes:
        task: The task.
    """

    __slots__ = ("_tasks", "sock", "task")

    def __init__(self, sock: socket.socket, tasks: set[asyncio.Task[None]]) -> None:
        self.sock = sock
        self.task: asyncio.Task[None] | None = None
        self._tasks = tasks

    def has_unread(self) -> bool:
        """Return whether it has sent what nobody has read yet."""
        return has_unread(self.sock)

    def drop(self) -> None:
        """Close it at once; the task ends in the next turn of the loop."""
        if self.task is not None:
            descriptor = self.sock.fileno()
            if descriptor >= 0:
                loop = self.task.get_loop()
                with contextlib.suppress(NotImplementedError):
                    LoopState.of(loop)._ignore(descriptor)
                    loop.remove_reader(descriptor)
                    loop.remove_writer(descriptor)
                self.sock.close()
            self.task.cancel()
            # One that was cancelled before its first step takes nothing out.
            self._tasks.discard(self.task)
