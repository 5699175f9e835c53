"""The clients of an asyncio server that are in the opening handshake: places for them, and who has to give one back.

The rules are those of :mod:`wirespeed._handshake.admission`; here are sockets, tasks, the loop's clock and the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

from .._handshake.admission import Admission, Candidate, Entry, origin_of
from .._handshake.greeting import has_unread
from .._native import LoopState
from .._serving.tally import Tally
from ..typing import LoggerLike

__all__ = ["Gate", "InTask"]

# A millisecond or two of closing; the loop has other things to do.
_TRIMMED_AT_ONCE = 64

_TRIM_INTERVAL = 0.005


class Gate:
    """Who is in the opening handshake, as far as it waits for the client.

    Args:
        loop: The event loop.
        limit: How many there may be.
        logger: For those that had to go.

    Attributes:
        freed: Called when there is a place again after there was none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, logger: LoggerLike) -> None:
        self.freed: Callable[[], None] | None = None
        self._loop = loop
        self._admission = Admission(limit)
        self._tally = Tally(logger)
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        # Runs while there are too many.
        self._trimmer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._admission)

    @property
    def is_crowded(self) -> bool:
        """Whether there are as many as there may be, or more."""
        return self._admission.is_crowded

    def delay(self) -> float:
        """Return for how many seconds nobody can be admitted; 0 for not at all."""
        return self._admission.delay(self._loop.time()) if self._admission.is_full else 0.0

    def enter(self, candidate: Candidate, address: Any) -> Entry:
        """Give somebody a place; if there was none, others go.

        Args:
            candidate: Who comes.
            address: Its address.
        """
        now = self._loop.time()
        if self._admission.is_crowded:
            # Two, so that there are fewer in the end, if there are too many.
            for _ in range(2):
                if self._admission.is_crowded and (entry := self._admission.overdue(now)) is not None:
                    self._drop(entry)
            if self._admission.is_full and (entry := self._admission.first_to_go()) is not None:
                self._drop(entry)
        entry = self._admission.add(candidate, address, now)
        self._arm_trimmer()
        return entry

    def progress(self, entry: Entry) -> None:
        """Note that something came from a client.

        Args:
            entry: Its place.
        """
        self._admission.progress(entry, self._loop.time())

    def leave(self, entry: Entry | None) -> None:
        """Take a place back.

        Args:
            entry: The place, ``None`` for none; nothing happens if somebody else has it.
        """
        if entry is not None:
            was_full = self._admission.is_full
            if self._admission.remove(entry) and was_full and self.freed is not None:
                self.freed()

    def relieve(self) -> float | None:
        """Close who is first to go, for the sake of its descriptor.

        Returns:
            Seconds until that is possible; 0 if it was done, ``None`` if there is nobody.
        """
        if not len(self._admission):
            return None
        delay = self._admission.delay(self._loop.time())
        if not delay and (entry := self._admission.first_to_go()) is not None:
            self._drop(entry)
        return delay

    def count(self, kind: object, level: int, text: str, *arguments: Any) -> None:
        """Log what may happen often.

        Args:
            kind: As for :meth:`wirespeed._serving.tally.Tally.add`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        self._tally.add(kind, self._loop.time(), level, text, *arguments)
        self._arm()

    def count_of(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log what a client can cause as often as it likes.

        Args:
            address: Its address.
            kind: As for :meth:`wirespeed._serving.tally.Tally.add_of`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        self._tally.add_of(origin_of(address), kind, self._loop.time(), level, text, *arguments)
        self._arm()

    def finish(self) -> None:
        """Log what was not yet, and nothing more."""
        for timer in (self._timer, self._trimmer):
            if timer is not None:
                timer.cancel()
        self._timer = self._trimmer = None
        self._tally.finish()

    def _drop(self, entry: Entry) -> None:
        self.count(self, logging.WARNING, *self._admission.farewell(entry))
        self._admission.remove(entry)
        entry.candidate.drop()

    def _arm_trimmer(self) -> None:
        if self._trimmer is None:
            left = self._admission.overdue_in(self._loop.time())
            if left is not None:
                self._trimmer = self._loop.call_later(max(left, _TRIM_INTERVAL), self._trim)

    def _trim(self) -> None:
        self._trimmer = None
        now = self._loop.time()
        for _ in range(_TRIMMED_AT_ONCE):
            if self._admission.overdue_in(now) is None or (entry := self._admission.overdue(now)) is None:
                break
            self._drop(entry)
        self._arm_trimmer()

    def _arm(self) -> None:
        due = self._tally.due
        if due is not None and (self._timer is None or due < self._due):
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_at(due, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._tally.tell(self._loop.time())
        self._arm()


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
