"""The clients of a blocking server that are in the opening handshake: places for them, and who has to give one back.

What is done with them is :mod:`wirespeed._serving.handshake_limiter`; here are the lock, the clock and the threads.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

from .._handshake.admission import Candidate, Entry
from .._serving.handshake_limiter import HandshakeLimiterBase
from ..typing import LoggerLike

__all__ = ["HandshakeLimiter", "InThread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _locked(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method of the gate that holds its lock."""

    @functools.wraps(method)
    def locked(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class HandshakeLimiter(HandshakeLimiterBase):
    """Who is in the opening handshake, as far as it waits for the client.

    One thread accepts, and that alone calls :meth:`enter`, :meth:`evict_one` and :meth:`trim`, which close others; any
    thread may call the rest.

    Args:
        lock: Held in each call, and while somebody is closed. One thread may take it more than once.
        limit: How many there may be.
        logger: For those that had to go.
        freed: Called, with the lock, when a place is given back.
        wake: Called, with the lock, when :meth:`tell` will have something to do earlier than it has said.
    """

    _relief = 0.01

    def __init__(
        self,
        lock: AbstractContextManager[object],
        limit: int,
        logger: LoggerLike,
        freed: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(time.monotonic, limit, logger)
        self._lock = lock
        self._freed = freed
        self._wake = wake

    delay = _locked(HandshakeLimiterBase.delay)
    enter = _locked(HandshakeLimiterBase.enter)
    trim = _locked(HandshakeLimiterBase.trim)
    replace = _locked(HandshakeLimiterBase.replace)
    progress = _locked(HandshakeLimiterBase.progress)
    evict_one = _locked(HandshakeLimiterBase.evict_one)
    count = _locked(HandshakeLimiterBase.count)
    throttled_log = _locked(HandshakeLimiterBase.throttled_log)
    throttled_log_start = _locked(HandshakeLimiterBase.throttled_log_start)
    tell = _locked(HandshakeLimiterBase.tell)
    close_all = _locked(HandshakeLimiterBase.close_all)
    finish = _locked(HandshakeLimiterBase.finish)

    @_locked
    def join(self, candidate: Candidate, address: Any) -> Entry:
        """Give somebody a place; nobody goes for it at once.

        Args:
            candidate: Who comes.
            address: Its address.
        """
        return self._admission.add(candidate, address, self._clock())

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
            is_kept = self._admission.remove(entry) is not None
            if is_kept:
                self._freed()
            return is_kept

    def _tell_at(self, due: float) -> None:
        self._wake()


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
