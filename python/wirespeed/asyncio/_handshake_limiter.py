"""The asyncio part of the handshake limiter: timers on the loop, and handshakes that run in tasks.

The policy is in :mod:`wirespeed._server.handshake_limiter`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from .._handshake.eviction import Entry
from .._handshake.pending_handshake import has_unread
from .._native import LoopState
from .._server.handshake_limiter import HandshakeLimiterBase
from ..typing import LoggerLike

__all__ = ["HandshakeLimiter", "HandshakeTask"]


class HandshakeLimiter(HandshakeLimiterBase):
    """Limits the opening handshakes that wait for a client on an event loop.

    Args:
        loop: The event loop.
        limit: Maximum number of pending handshakes.
        logger: Logger for closed handshakes.

    Attributes:
        freed: Called when the limiter is no longer full.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, logger: LoggerLike) -> None:
        super().__init__(loop.time, limit, logger)
        self.freed: Callable[[], None] | None = None
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        # Set while the limit is exceeded.
        self._trimmer: asyncio.TimerHandle | None = None

    def leave(self, entry: Entry | None) -> None:
        """Remove a handshake.

        Args:
            entry: Its entry; nothing happens with ``None``, or if the entry was removed before.
        """
        if entry is not None:
            was_full = self._queue.is_full
            if self._queue.remove(entry) and was_full and self.freed is not None:
                self.freed()

    def finish(self) -> None:
        """Log the pending counts, and stop the timers."""
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

    def _schedule_log(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._log_due)

    def _log_due(self) -> None:
        self.log_due()
        if self._due is not None:
            self._schedule_log(self._due)


class HandshakeTask:
    """A pending handshake that runs in a task of the server.

    Args:
        sock: The socket.
        tasks: The tasks of the server, which include this one.

    Attributes:
        task: The task.
    """

    __slots__ = ("_tasks", "sock", "task")

    def __init__(self, sock: socket.socket, tasks: set[asyncio.Task[None]]) -> None:
        self.sock = sock
        self.task: asyncio.Task[None] | None = None
        self._tasks = tasks

    def has_unread(self) -> bool:
        """Return whether the socket has unread input."""
        return has_unread(self.sock)

    def drop(self) -> None:
        """Close the socket; the task ends in the next iteration of the loop."""
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
            # A task that is cancelled before its first step does not remove itself.
            self._tasks.discard(self.task)
