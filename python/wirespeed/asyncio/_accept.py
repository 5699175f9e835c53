"""Accepting clients on an event loop: sockets, pending handshakes, and the bytes of the opening handshake.

The policy is in :mod:`wirespeed._server.accept` and :mod:`wirespeed._server.negotiate`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from .._native import LoopState, Opened, PendingHandshake
from .._net.binding import EXHAUSTED
from .._server.accept import (
    READ_SIZE,
    AcceptedSocket,
    AcceptErrors,
    HandshakeLimiterBase,
    PendingHandshakesBase,
    accepting,
)
from .._server.negotiate import LINGER_TIMEOUT, Refusal
from ..typing import LoggerLike
from ._sockets import receive, send_all

__all__ = ["Acceptor", "HandshakeLimiter", "HandshakeTask", "PendingHandshakes", "negotiate", "receive_request"]

# Handshakes to start in one iteration of the loop: some 3 ms, if all requests have arrived. An embedded epoll reports
# 256 events in one iteration, and a handshake that fails at once takes two of them. So clients do not come in faster
# than they are served.
_STARTED_AT_ONCE = 32

# Sockets to accept in one iteration: another 3 ms. In a burst, this is the number that arrives while 256 events are
# handled. A client that finds the system's queue full gets no answer for a second.
_ACCEPTED_AT_ONCE = 512


def _half_of_descriptors() -> int:
    try:
        import resource
    except ImportError:
        return sys.maxsize  # Windows
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2


class Acceptor:
    """Accepts connections from listening sockets.

    It empties the queues of the system faster than clients can be served, and starts some handshakes in each iteration
    of the loop. Accepted sockets whose handshake has not started count as pending handshakes. Their number is limited
    by the handshake limiter, and to half of the process's descriptors.

    1. :meth:`start`: listen and accept.
    2. :meth:`stop`, then :meth:`drain_backlog`: stop, and start the handshakes of all accepted sockets.
    3. :meth:`close_backlog` instead, if the loop is closed.

    Args:
        socks: The bound sockets. The caller keeps and closes them.
        backlog: Number of connections that the system keeps until they are accepted.
        accepted: Called with each accepted non-blocking socket, which it takes over, and the address of its peer.
        limiter: Limits the pending handshakes, and logs frequent errors of ``accept``.
        logger: Logger for errors that end accepting on a socket.
    """

    def __init__(
        self,
        socks: Sequence[socket.socket],
        backlog: int,
        accepted: Callable[[socket.socket, Any], None],
        limiter: HandshakeLimiter,
        logger: LoggerLike,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        # The sockets that can still accept, with their accept functions.
        self._socks = {sock: accepting(sock) for sock in socks}
        self._backlog = backlog
        self._accepted = accepted
        self._limiter = limiter
        self._logger = logger
        self._watching = False
        self._stopped = False
        # Accepted sockets whose handshake has not started, and the handle that starts them.
        self._queue: deque[tuple[socket.socket, Any]] = deque()
        self._max_sockets = _half_of_descriptors()
        self._scheduled: asyncio.Handle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Set while accepting is paused.
        self._pause: asyncio.TimerHandle | None = None
        self._is_full = False
        self._errors = AcceptErrors(limiter)

    @property
    def is_broken(self) -> bool:
        """Whether none of the sockets can accept any more."""
        return not self._socks

    def start(self) -> None:
        """Listen and accept."""
        for sock in self._socks:
            if sock.family != getattr(socket, "AF_UNIX", None):
                # On Linux and the BSDs, accepted sockets inherit this option.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.listen(self._backlog)
        self._limiter.freed = self._freed
        self._watch()

    def stop(self) -> None:
        """Stop accepting. The handshakes of accepted sockets still start: see :meth:`drain_backlog`."""
        self._stopped, self._is_full = True, False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._limiter.freed = None
        self._unwatch()
        self._schedule()

    async def drain_backlog(self) -> None:
        """Wait until the handshakes of all accepted sockets have started; call it after :meth:`stop`."""
        while self._queue:
            await asyncio.sleep(0)

    def close_backlog(self) -> None:
        """Close the accepted sockets, because the loop is closed and cannot start their handshakes."""
        while self._queue:
            self._queue.popleft()[0].close()

    def _watch(self) -> None:
        self._watching = True
        for sock in list(self._socks):
            if sock.fileno() < 0:
                self._drop(sock, OSError(errno.EBADF, "it was closed"))
                continue
            try:
                self._loop.add_reader(sock.fileno(), self._accept, sock)
            except NotImplementedError:
                # The proactor loop of Windows.
                self._tasks.append(self._loop.create_task(self._accept_by_loop(sock)))

    def _unwatch(self) -> None:
        if not self._watching:
            return
        self._watching = False
        for sock in self._socks:
            self._ignore(sock)
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _ignore(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            with contextlib.suppress(NotImplementedError):
                self._loop.remove_reader(sock.fileno())

    def _pause_for(self, seconds: float) -> None:
        """Pause accepting; new connections wait in the queue of the system."""
        self._unwatch()
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._is_full = False
        self._watch()
        self._schedule()

    def _freed(self) -> None:
        if self._is_full and self._pause is not None:
            self._pause.cancel()
            self._resume()

    def _accept(self, listening: socket.socket) -> None:
        accept = self._socks[listening]
        limiter, queued = self._limiter, len(self._queue)
        room = min(limiter.room, self._max_sockets - len(limiter)) - queued
        # Accept at most this number in one iteration, so that the loop can serve its other tasks.
        for _ in range(min(_ACCEPTED_AT_ONCE, max(room, _STARTED_AT_ONCE - queued))):
            try:
                accepted = accept()
                if accepted is None:
                    break
            except OSError as exc:
                # Start the waiting handshakes first: those that fail free their descriptors.
                if exc.errno in EXHAUSTED and len(self._queue) >= _STARTED_AT_ONCE:
                    break
                delay = self._delay_after(exc, listening)
                if delay:
                    self._pause_for(delay)
                if delay != 0.0:
                    break
                continue
            self._errors.lost = 0
            self._queue.append(accepted)
        if self._scheduled is None:
            self._start_handshakes()

    def _schedule(self) -> None:
        if self._queue and self._scheduled is None and not self._loop.is_closed():
            self._scheduled = self._loop.call_soon(self._start_handshakes)

    def _start_handshakes(self) -> None:
        self._scheduled = None
        try:
            for _ in range(min(_STARTED_AT_ONCE, len(self._queue))):
                if not self._stopped and (left := self._limiter.delay()):
                    self._is_full = True
                    self._pause_for(left)
                    return
                self._accepted(*self._queue.popleft())
        finally:
            if not self._is_full:
                self._schedule()

    async def _accept_by_loop(self, listening: socket.socket) -> None:
        while True:
            delay: float | None = self._limiter.delay()
            if not delay:
                try:
                    sock, address = await self._loop.sock_accept(listening)
                except OSError as exc:
                    delay = self._delay_after(exc, listening)
                    if delay is None:
                        return
                else:
                    self._errors.lost = 0
                    self._accepted(sock, address)
                    continue
            await asyncio.sleep(delay)

    def _delay_after(self, exc: OSError, listening: socket.socket) -> float | None:
        """Return for how many seconds to pause after an error; ``None`` to stop accepting on this socket."""
        delay = self._errors.delay_after(exc, str(exc.strerror))
        if delay is None:
            self._drop(listening, exc)
        return delay

    def _drop(self, sock: socket.socket, exc: OSError) -> None:
        self._ignore(sock)
        del self._socks[sock]
        self._logger.error("a listening socket accepts no more connections", exc_info=exc)


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

    def leave(self, key: int | None) -> None:
        """Remove a handshake.

        Args:
            key: Its key; nothing happens with ``None``, or if the handshake was removed before.
        """
        if key is not None:
            was_full = self._pending.is_full
            if self.remove(key) and was_full and self.freed is not None:
                self.freed()

    def finish(self) -> None:
        """Log the pending counts, and stop the timers."""
        for timer in (self._timer, self._trimmer):
            if timer is not None:
                timer.cancel()
        self._timer = self._trimmer = None
        super().finish()

    def _trim_later(self) -> None:
        if self._trimmer is None and (left := self._pending.trim_in(self._clock())) is not None:
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


OnRequest = Callable[[AcceptedSocket, bool], None]


class PendingHandshakes(PendingHandshakesBase):
    """The sockets of a server that wait for their request.

    Args:
        loop: The event loop; it must have ``add_reader``.
        open_timeout: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Counts the pending handshakes.
        make_handshake: Creates the parser of a client.
        on_request: Called with each socket that need not wait longer, and whether its descriptor is still watched. It
            takes the socket over, and must call :meth:`ignore` or attach a connection that replaces the watch.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_timeout: float | None,
        limiter: HandshakeLimiter,
        make_handshake: Callable[[], PendingHandshake],
        on_request: OnRequest,
    ) -> None:
        super().__init__(loop.time, open_timeout, limiter, make_handshake)
        self._loop = loop
        self._on_request = on_request
        self._state = LoopState.of(loop)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket.socket, address: Any) -> None:
        """Wait for the request of a socket.

        Args:
            sock: An accepted non-blocking socket.
            address: Address of its peer.
        """
        accepted = self._admit(sock, address)
        if accepted is not None:
            self._on_request(accepted, False)

    def ignore(self, descriptor: int) -> None:
        """Stop watching the descriptor of a socket that was passed on.

        Args:
            descriptor: The descriptor.
        """
        self._state._ignore(descriptor)

    def release(self) -> None:
        """Pass on all waiting sockets."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (accepted := self._take()) is not None:
            self._on_request(accepted, True)

    def _watch(self, accepted: AcceptedSocket) -> None:
        if self._timer is None and accepted.deadline is not None:
            self._timer = self._loop.call_at(accepted.deadline, self._expire)
        self._state._watch(accepted.sock.fileno(), functools.partial(self._readable, accepted))

    def _readable(self, accepted: AcceptedSocket) -> None:
        if self._receive(accepted):
            self._on_request(accepted, True)

    def _drop(self, accepted: AcceptedSocket) -> None:
        self.ignore(accepted.sock.fileno())
        super()._drop(accepted)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while (accepted := self._take(now)) is not None:
            self._on_request(accepted, True)
        if self._timer is None and (deadline := self._deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._expire)


async def receive_request(sock: socket.socket, steps: Generator[bytes | None, bytes | None, Opened]) -> Opened:
    """Run :func:`wirespeed._server.negotiate.reception`; return its result, and raise its exceptions.

    Args:
        sock: The accepted non-blocking socket.
        steps: The generator that it returned.

    Raises:
        OSError: The socket failed.
    """
    try:
        output = next(steps)
        while True:
            data = None
            if output is None:
                data = await receive(sock, READ_SIZE)
            elif isinstance(output, Refusal):
                await _send_last(sock, output)
            else:
                await send_all(sock, output)
            output = steps.send(data)
    except StopIteration as stop:
        opened: Opened = stop.value
        return opened


async def _send_last(sock: socket.socket, output: bytes) -> None:
    async def drain() -> None:
        sock.shutdown(socket.SHUT_WR)
        while await receive(sock, READ_SIZE):
            pass

    with contextlib.suppress(OSError):
        sock.send(output)
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(drain(), LINGER_TIMEOUT)


async def negotiate(steps: Generator[Any, Any, Exception | None]) -> Exception | None:
    """Run :func:`wirespeed._server.negotiate.negotiation`; return its result.

    Args:
        steps: The generator that it returned.
    """
    try:
        result = next(steps)
        while True:
            try:
                if isinstance(result, Awaitable):
                    result = await result
            except Exception as exc:
                result = steps.throw(exc)
            else:
                result = steps.send(result)
    except StopIteration as exc:
        error: Exception | None = exc.value
        return error
