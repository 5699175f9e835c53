"""The blocking part of the handshake limiter: a lock, and handshakes that run in threads.

The policy is in :mod:`wirespeed._server.handshake_limiter`.
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

from .._handshake.eviction import Candidate, Entry
from .._server.handshake_limiter import HandshakeLimiterBase
from ..typing import LoggerLike

__all__ = ["HandshakeLimiter", "HandshakeThread"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _locked(method: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], _T]:
    """Return a method of the limiter that holds its lock."""

    @functools.wraps(method)
    def locked(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class HandshakeLimiter(HandshakeLimiterBase):
    """Limits the opening handshakes that wait for a client, for threads.

    Only the accepting thread calls :meth:`enter`, :meth:`evict_one` and :meth:`trim`, which close handshakes. Any
    thread may call the other methods.

    Args:
        lock: Reentrant lock, held in each call and while a handshake is closed.
        limit: Maximum number of pending handshakes.
        logger: Logger for closed handshakes.
        freed: Called with the lock held when a handshake is removed.
        wake: Called with the lock held when :meth:`log_due` must be called earlier than it returned.
    """

    _eviction_delay = 0.01

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
    log_due = _locked(HandshakeLimiterBase.log_due)
    close_all = _locked(HandshakeLimiterBase.close_all)
    finish = _locked(HandshakeLimiterBase.finish)

    @_locked
    def join(self, candidate: Candidate, address: Any) -> Entry:
        """Add a handshake without closing others.

        Args:
            candidate: The new handshake.
            address: Address of the client.
        """
        return self._queue.add(candidate, address, self._clock())

    def leave(self, entry: Entry | None) -> bool:
        """Remove a handshake.

        Args:
            entry: Its entry, ``None`` for no handshake.

        Returns:
            Whether it was still there, and was not closed by the limiter.
        """
        if entry is None:
            return True
        with self._lock:
            is_kept = self._queue.remove(entry) is not None
            if is_kept:
                self._freed()
            return is_kept

    def _schedule_log(self, due: float) -> None:
        self._wake()


class HandshakeThread:
    """A pending handshake that runs in a thread, which removes the entry before it closes the socket.

    Args:
        sock: The socket.
    """

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def has_unread(self) -> bool:
        """Return whether the socket has unread input."""
        # recv with MSG_PEEK would wait for the timeout of the socket. select.select does not support descriptors above
        # 1023, so it is used only without poll.
        if not hasattr(select, "poll"):
            return bool(select.select([self._sock], [], [], 0)[0])
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def drop(self) -> None:
        """Shut the socket down: this wakes the thread if it waits, and the thread closes the socket."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
