"""Listening sockets, and the sockets that they accept.

It knows nothing above TCP. The server calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import Any

from ..binding import EXHAUSTED, RETRY_DELAY, bind_addresses
from ..typing import LoggerLike

__all__ = ["Acceptor", "bind_tcp"]

# A tenth of a second of opening handshakes, if all requests are there already.
_ACCEPTED_AT_ONCE = 1024


async def bind_tcp(
    hosts: Iterable[str | None],
    port: int,
    *,
    family: int = 0,
    flags: int = socket.AI_PASSIVE,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
) -> list[socket.socket]:
    """Bind sockets to all addresses of the hosts.

    Args:
        hosts: Names and addresses; ``None`` for all interfaces.
        port: Port; 0 for one that the system chooses, the same for all addresses.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only these addresses.
        flags: As for ``socket.getaddrinfo``.
        reuse_address: Whether to set SO_REUSEADDR; ``None`` to do so on POSIX.
        reuse_port: Whether to set SO_REUSEPORT.

    Raises:
        OSError: An address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    infos: list[Any] = []
    for name in hosts:
        found = await loop.getaddrinfo(name, port, family=family, type=socket.SOCK_STREAM, flags=flags)
        infos.extend(info for info in found if info not in infos)
    return bind_addresses(infos, port=port, reuse_address=reuse_address, reuse_port=reuse_port)


class Acceptor:
    """Accepts what comes to listening sockets, while it is not paused.

    Args:
        socks: The sockets, bound. They stay the caller's.
        backlog: Connections that the system keeps until they are accepted.
        accepted: Called with each accepted socket, non-blocking, which it takes over, and the address of its other end.
        logger: For what keeps sockets from being accepted.
    """

    def __init__(
        self,
        socks: list[socket.socket],
        backlog: int,
        accepted: Callable[[socket.socket, Any], None],
        logger: LoggerLike,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socks = socks
        self._backlog = backlog
        self._accepted = accepted
        self._logger = logger
        self._paused = False
        self._watching = False
        self._tasks: list[asyncio.Task[None]] = []
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Listen and accept."""
        for sock in self._socks:
            if sock.family != getattr(socket, "AF_UNIX", None):
                # Accepted sockets inherit it, on Linux and the BSDs.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.listen(self._backlog)
        self._watch()

    def pause(self) -> None:
        """Leave what comes to the system's queue."""
        self._paused = True
        self._unwatch()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if self._paused:
            self._paused = False
            if self._retry is None:
                self._watch()

    def stop(self) -> None:
        """Accept nothing more."""
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None
        self._paused = True
        self._unwatch()

    def _watch(self) -> None:
        self._watching = True
        for sock in self._socks:
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
            with contextlib.suppress(NotImplementedError):
                self._loop.remove_reader(sock.fileno())
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _accept(self, listening: socket.socket) -> None:
        # A limit of its own, whatever may wait: the loop has other things to do.
        for _ in range(_ACCEPTED_AT_ONCE):
            if not self._watching:
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._failed(exc)
                return
            sock.setblocking(False)
            self._accepted(sock, address)

    async def _accept_by_loop(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                self._failed(exc)
                return
            self._accepted(sock, address)

    def _failed(self, exc: OSError) -> None:
        if exc.errno not in EXHAUSTED:
            self._logger.error("accepting connections failed", exc_info=exc)
            self._unwatch()
            return
        self._logger.error("cannot accept connections for now: %s", exc.strerror)
        self._unwatch()
        self._retry = self._loop.call_later(RETRY_DELAY, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if not self._paused:
            self._watch()
