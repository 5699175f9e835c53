"""The clients of a blocking server that are in the opening handshake: places for them, and who has to give one back.

The rules are those of :mod:`wirespeed._handshake.admission`; here are sockets, threads, the clock and the log.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .._handshake.admission import Admission, Candidate, Entry, origin_of
from .._handshake.greeting import Greeting
from .._serving.tally import Tally
from ..typing import LoggerLike

__all__ = ["Gate", "InThread"]

# A millisecond or two of closing; there are others to be served.
_TRIMMED_AT_ONCE = 64

_TRIM_INTERVAL = 0.005

# Seconds until a thread has closed what it was to close, if it does not say so earlier.
_RELIEF = 0.01


class Gate:
    """Who is in the opening handshake, as far as it waits for the client.

    One thread accepts, and that alone calls :meth:`enter`, :meth:`relieve` and :meth:`trim`, which close others; any
    thread may call the rest.

    Args:
        lock: Held in each call, and while somebody is closed.
        limit: How many there may be.
        logger: For those that had to go.
        freed: Called, with the lock, when a place is given back.
        wake: Called, with the lock, when :meth:`tell` will have something to do, after it had nothing.
    """

    def __init__(
        self,
        lock: threading.Condition,
        limit: int,
        logger: LoggerLike,
        freed: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._admission = Admission(limit)
        self._tally = Tally(logger)
        self._freed = freed
        self._wake = wake

    def __len__(self) -> int:
        return len(self._admission)

    def delay(self) -> float:
        """Return for how many seconds nobody can be admitted; 0 for not at all."""
        with self._lock:
            return self._admission.delay(time.monotonic()) if self._admission.is_full else 0.0

    def enter(self, candidate: Candidate, address: Any) -> Entry:
        """Give somebody a place; if there was none, others go.

        Args:
            candidate: Who comes.
            address: Its address.
        """
        with self._lock:
            if self._admission.is_crowded:
                now = time.monotonic()
                # Two, so that there are fewer in the end, if there are too many.
                for _ in range(2):
                    if self._admission.is_crowded and (entry := self._admission.overdue(now)) is not None:
                        self._drop(entry)
                if self._admission.is_full and (entry := self._admission.first_to_go()) is not None:
                    self._drop(entry)
            return self.join(candidate, address)

    def join(self, candidate: Candidate, address: Any) -> Entry:
        """Give somebody a place; nobody goes for it at once.

        Args:
            candidate: Who comes.
            address: Its address.
        """
        with self._lock:
            return self._admission.add(candidate, address, time.monotonic())

    def trim(self) -> float | None:
        """Close some of those that are too many; return in how many seconds to do so again, ``None`` for never."""
        with self._lock:
            now = time.monotonic()
            for _ in range(_TRIMMED_AT_ONCE):
                if self._admission.overdue_in(now) is None or (entry := self._admission.overdue(now)) is None:
                    break
                self._drop(entry)
            left = self._admission.overdue_in(now)
            return None if left is None else max(left, _TRIM_INTERVAL)

    def progress(self, entry: Entry) -> None:
        """Note that something came from a client.

        Args:
            entry: Its place.
        """
        with self._lock:
            self._admission.progress(entry, time.monotonic())

    def leave(self, entry: Entry | None) -> bool:
        """Take a place back.

        Args:
            entry: The place, ``None`` for none.

        Returns:
            Whether nobody else had got it.
        """
        if entry is None:
            return True
        with self._lock:
            is_kept = self._admission.remove(entry)
            if is_kept:
                self._freed()
            return is_kept

    def relieve(self) -> float | None:
        """Close who is first to go, for the sake of its descriptor and its thread.

        Returns:
            Seconds until that is possible, or until it has an effect; 0 if it was done, ``None`` if there is nobody.
        """
        with self._lock:
            if not len(self._admission):
                return None
            delay = self._admission.delay(time.monotonic())
            if not delay and (entry := self._admission.first_to_go()) is not None:
                self._drop(entry)
                # Others are closed by their threads.
                return 0.0 if isinstance(entry.candidate, Greeting) else _RELIEF
            return delay

    def count(self, kind: object, level: int, text: str, *arguments: Any) -> None:
        """Log what may happen often.

        Args:
            kind: As for :meth:`wirespeed._serving.tally.Tally.add`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        with self._lock:
            self._tally.add(kind, time.monotonic(), level, text, *arguments)

    def count_of(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log what a client can cause as often as it likes.

        Args:
            address: Its address.
            kind: As for :meth:`wirespeed._serving.tally.Tally.add_of`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        with self._lock:
            was_quiet = self._tally.due is None
            self._tally.add_of(origin_of(address), kind, time.monotonic(), level, text, *arguments)
            if was_quiet and self._tally.due is not None:
                self._wake()

    def tell(self) -> float | None:
        """Log what is due; return in how many seconds there is more, ``None`` for never."""
        with self._lock:
            now = time.monotonic()
            self._tally.tell(now)
            due = self._tally.due
            return None if due is None else max(0.001, due - now)

    def finish(self) -> None:
        """Log what was not yet."""
        with self._lock:
            self._tally.finish()

    def _drop(self, entry: Entry) -> None:
        self.count(self, logging.WARNING, *self._admission.farewell(entry))
        self._admission.remove(entry)
        entry.candidate.drop()


class InThread:
    """A client whose opening handshake is made by a thread, which gives its place back before it closes the socket.

    Args:
        sock: Its socket.
    """

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def has_unread(self) -> bool:
        """Return whether it has sent what nobody has read yet."""
        # Not recv with MSG_PEEK: it would wait, as long as the thread means to. Not select.select, which
        # knows no descriptor above 1023, where there is another way.
        if not hasattr(select, "poll"):
            return bool(select.select([self._sock], [], [], 0)[0])
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def drop(self) -> None:
        """End it: the thread, which may wait for it, wakes up and closes it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
