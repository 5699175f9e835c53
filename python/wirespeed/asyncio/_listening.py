"""The sockets that listening sockets accept.

It knows nothing above TCP. The server calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .._net.binding import EXHAUSTED
from .._serving.accepting import AcceptErrors, accepting
from ..typing import LoggerLike
from ._handshake_limiter import HandshakeLimiter

__all__ = ["Acceptor"]

# Three milliseconds of opening handshakes, if all requests are there already. No more come in in a turn of the loop
# than go in one: an epoll of ours tells 256 of what there is for them, and who fails at once is told of twice.
_LET_IN_AT_ONCE = 32

# Three more, and as many as come while 256 are told of what there is for them, of thousands at once: whoever finds the
# system's queue full is not answered for a second.
_ACCEPTED_AT_ONCE = 512


def _half_of_descriptors() -> int:
    try:
        import resource
    except ImportError:
        return sys.maxsize  # Windows
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit // 2


class Acceptor:
    """Accepts what comes to listening sockets.

    It empties the system's queues faster than clients can be served, and hands on some in each turn of the loop. Those
    that wait for that count among the clients in the opening handshake, of which there are no more than the gate says,
    and than half of the descriptors: others need some.

    Args:
        socks: The sockets, bound. They stay the caller's.
        backlog: Connections that the system keeps until they are accepted.
        accepted: Called with each accepted socket, non-blocking, which it takes over, and the address of its other end.
        limiter: Says whether there is a place for one more, and logs what may keep sockets from being accepted often.
        logger: For what keeps them from it for ever.
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
        # Those that can still accept, and how.
        self._socks = {sock: accepting(sock) for sock in socks}
        self._backlog = backlog
        self._accepted = accepted
        self._limiter = limiter
        self._logger = logger
        self._watching = False
        self._stopped = False
        # Those that were accepted, and are to be handed on; by what, if that is planned.
        self._ahead: deque[tuple[socket.socket, Any]] = deque()
        self._most = _half_of_descriptors()
        self._turn: asyncio.Handle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Until it is over, nothing is accepted.
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
                # Accepted sockets inherit it, on Linux and the BSDs.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.listen(self._backlog)
        self._limiter.freed = self._freed
        self._watch()

    def stop(self) -> None:
        """Accept nothing more. What was accepted is handed on all the same: see :meth:`hand_on_all`."""
        self._stopped, self._is_full = True, False
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._limiter.freed = None
        self._unwatch()
        self._plan()

    async def hand_on_all(self) -> None:
        """Wait until all that was accepted is handed on; to be called once it is stopped."""
        while self._ahead:
            await asyncio.sleep(0)

    def give_up(self) -> None:
        """Close what was accepted: the loop is closed, and nobody takes it."""
        while self._ahead:
            self._ahead.popleft()[0].close()

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

    def _rest(self, seconds: float) -> None:
        """Leave what comes to the system's queue for a time."""
        self._unwatch()
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._is_full = False
        self._watch()
        self._plan()

    def _freed(self) -> None:
        if self._is_full and self._pause is not None:
            self._pause.cancel()
            self._go_on()

    def _accept(self, listening: socket.socket) -> None:
        accept = self._socks[listening]
        limiter, ahead = self._limiter, len(self._ahead)
        room = min(limiter.room, self._most - len(limiter)) - ahead
        # A limit of its own, whatever may wait: the loop has other things to do.
        for _ in range(min(_ACCEPTED_AT_ONCE, max(room, _LET_IN_AT_ONCE - ahead))):
            try:
                accepted = accept()
                if accepted is None:
                    break
            except OSError as exc:
                # Those who are here go first, and give back what they have if it comes to nothing.
                if exc.errno in EXHAUSTED and len(self._ahead) >= _LET_IN_AT_ONCE:
                    break
                delay = self._after(exc, listening)
                if delay:
                    self._rest(delay)
                if delay != 0.0:
                    break
                continue
            self._errors.lost = 0
            self._ahead.append(accepted)
        if self._turn is None:
            self._let_in()

    def _plan(self) -> None:
        if self._ahead and self._turn is None and not self._loop.is_closed():
            self._turn = self._loop.call_soon(self._let_in)

    def _let_in(self) -> None:
        self._turn = None
        try:
            for _ in range(min(_LET_IN_AT_ONCE, len(self._ahead))):
                if not self._stopped and (left := self._limiter.delay()):
                    self._is_full = True
                    self._rest(left)
                    return
                self._accepted(*self._ahead.popleft())
        finally:
            if not self._is_full:
                self._plan()

    async def _accept_by_loop(self, listening: socket.socket) -> None:
        while True:
            delay: float | None = self._limiter.delay()
            if not delay:
                try:
                    sock, address = await self._loop.sock_accept(listening)
                except OSError as exc:
                    delay = self._after(exc, listening)
                    if delay is None:
                        return
                else:
                    self._errors.lost = 0
                    self._accepted(sock, address)
                    continue
            await asyncio.sleep(delay)

    def _after(self, exc: OSError, listening: socket.socket) -> float | None:
        """Return for how many seconds not to accept after an error; ``None`` for never more from this socket."""
        delay = self._errors.after(exc, str(exc.strerror))
        if delay is None:
            self._drop(listening, exc)
        return delay

    def _drop(self, sock: socket.socket, exc: OSError) -> None:
        self._ignore(sock)
        del self._socks[sock]
        self._logger.error("a listening socket accepts no more connections", exc_info=exc)
