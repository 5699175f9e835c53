"""Accepting clients in threads: pending handshakes, and the bytes of the opening handshake.

The policy is in :mod:`wirespeed._server.accept` and :mod:`wirespeed._server.negotiate`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import selectors
import socket as socket_module
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

from .._native import Opened, PendingHandshake
from .._server.accept import READ_SIZE, AcceptedSocket, HandshakeLimiterBase, PendingHandshakesBase
from .._server.negotiate import LINGER_TIMEOUT, Refusal
from ..typing import LoggerLike

__all__ = ["EVICTION_DELAY", "HandshakeLimiter", "PendingHandshakes", "drop_thread", "negotiate", "receive_request"]

EVICTION_DELAY = 0.01
"""Seconds until a thread has freed its descriptor after its handshake was closed."""

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

    Only the accepting thread calls :meth:`evict_one`, :meth:`trim`, and :meth:`enter` with ``evict``, which close
    handshakes. Any thread may call the other methods.

    Args:
        lock: Reentrant lock, held in each call and while a handshake is closed.
        limit: Maximum number of pending handshakes.
        logger: Logger for closed handshakes.
        freed: Called with the lock held when a handshake is removed.
        wake: Called with the lock held when :meth:`log_due` must be called earlier than it returned.
    """

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

    def leave(self, key: int | None) -> bool:
        """Remove a handshake.

        Args:
            key: Its key, ``None`` for no handshake.

        Returns:
            Whether it was still there, and was not closed by the limiter.
        """
        if key is None:
            return True
        with self._lock:
            is_kept = self.remove(key)
            if is_kept:
                self._freed()
            return is_kept

    def _schedule_log(self, due: float) -> None:
        self._wake()


def drop_thread(sock: socket_module.socket) -> float:
    """Close a pending handshake that runs in a thread; return in how many seconds its descriptor is free.

    The socket is shut down: this wakes the thread if it waits, and the thread closes the socket, after it has removed
    the handshake.

    Args:
        sock: The socket.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket_module.SHUT_RDWR)
    return EVICTION_DELAY


class PendingHandshakes(PendingHandshakesBase):
    """The sockets of a server that wait for their request. Only the accepting thread calls it.

    Args:
        selector: Selector of that thread. The data of each key is an ``AcceptedSocket``.
        open_timeout: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Counts the pending handshakes.
        make_handshake: Creates the parser of a client.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        open_timeout: float | None,
        limiter: HandshakeLimiter,
        make_handshake: Callable[[], PendingHandshake],
    ) -> None:
        super().__init__(time.monotonic, open_timeout, limiter, make_handshake)
        self._selector = selector

    def add(self, sock: socket_module.socket, address: Any) -> AcceptedSocket | None:
        """Add a socket; return it if it need not wait, because its request or an error is there already.

        Args:
            sock: An accepted non-blocking socket.
            address: Address of its peer.
        """
        return self._admit(sock, address)

    def readable(self, accepted: AcceptedSocket) -> bool:
        """Receive from a socket; return whether it need not wait any more, and is removed from this object.

        Args:
            accepted: The socket, which is readable.
        """
        return self._receive(accepted)

    def timeout(self) -> float | None:
        """Return in how many seconds the next deadline is, ``None`` for never."""
        deadline = self._deadline()
        return None if deadline is None else max(0.001, deadline - self._clock())

    def expired(self) -> AcceptedSocket | None:
        """Remove and return a handshake whose deadline has passed, ``None`` without one."""
        return self._take(self._clock())

    def release(self) -> AcceptedSocket | None:
        """Remove and return any handshake, ``None`` without one."""
        return self._take()

    def _watch(self, accepted: AcceptedSocket) -> None:
        self._selector.register(accepted.sock, selectors.EVENT_READ, accepted)

    def _forget(self, accepted: AcceptedSocket) -> None:
        super()._forget(accepted)
        self._selector.unregister(accepted.sock)


def receive_request(
    sock: socket_module.socket, deadline: float | None, steps: Generator[bytes | None, bytes | None, Opened]
) -> Opened:
    """Run :func:`wirespeed._server.negotiate.reception`; return its result, and raise its exceptions.

    Args:
        sock: The accepted socket. Its timeout is changed.
        deadline: Time of ``time.monotonic`` at which to stop, ``None`` for no limit.
        steps: The generator that it returned.

    Raises:
        OSError: The socket failed.
        TimeoutError: The deadline has passed.
    """
    try:
        output = next(steps)
        while True:
            data = None
            if isinstance(output, Refusal):
                _send_last(sock, output)
            else:
                _limit(sock, deadline)
                try:
                    if output is None:
                        data = sock.recv(READ_SIZE)
                    else:
                        sock.sendall(output)
                except TimeoutError:
                    raise _timeout() from None
            output = steps.send(data)
    except StopIteration as stop:
        opened: Opened = stop.value
        return opened


def _limit(sock: socket_module.socket, deadline: float | None) -> None:
    """Set the timeout of a socket so that its next call ends at the deadline."""
    if deadline is None:
        sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise _timeout()
    sock.settimeout(left)


def _timeout() -> TimeoutError:
    return TimeoutError("timed out while waiting for the request: open_timeout")


def _send_last(sock: socket_module.socket, output: bytes) -> None:
    deadline = time.monotonic() + LINGER_TIMEOUT
    with contextlib.suppress(OSError):
        _limit(sock, deadline)
        sock.sendall(output)
        sock.shutdown(socket_module.SHUT_WR)
        _limit(sock, deadline)
        while sock.recv(READ_SIZE):
            _limit(sock, deadline)


def negotiate(steps: Generator[Any, Any, Exception | None]) -> Exception | None:
    """Run :func:`wirespeed._server.negotiate.negotiation`; return its result.

    Args:
        steps: The generator that it returned.
    """
    try:
        result = next(steps)
        while True:
            if inspect.iscoroutine(result):
                result.close()  # avoids the warning about a coroutine that was never awaited
            result = steps.send(result)
    except StopIteration as stop:
        error: Exception | None = stop.value
        return error
