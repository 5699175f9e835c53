"""Listening sockets, and the sockets that they accept.

It knows nothing above TCP. The server calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterable
from typing import Any

from ..typing import LoggerLike, PathLike

__all__ = ["Acceptor", "bind_tcp", "bind_unix"]

# As in asyncio: how long to wait for descriptors or memory to become free.
_RETRY_DELAY = 1.0

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def bind_tcp(
    host: str | Iterable[str] | None,
    port: int | None,
    *,
    family: int = 0,
    flags: int = socket.AI_PASSIVE,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
) -> list[socket.socket]:
    """Bind sockets to all addresses of the hosts.

    Args:
        host: Name, address, or several; ``None`` or empty for all interfaces.
        port: Port; ``None`` or 0 for one that the system chooses, the same for all addresses as far as it is free.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only these addresses.
        flags: As for ``socket.getaddrinfo``.
        reuse_address: Whether to set SO_REUSEADDR; ``None`` to do so on POSIX.
        reuse_port: Whether to set SO_REUSEPORT.

    Raises:
        OSError: An address cannot be bound.
    """
    if reuse_address is None:
        reuse_address = os.name == "posix"
    if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
        raise ValueError("reuse_port is not supported by this system")
    hosts = [None] if host in (None, "") else [host] if isinstance(host, str) else list(host or [])
    loop = asyncio.get_running_loop()
    infos: list[Any] = []
    for name in hosts:
        found = await loop.getaddrinfo(name, port or 0, family=family, type=socket.SOCK_STREAM, flags=flags)
        infos.extend(info for info in found if info not in infos)
    with contextlib.ExitStack() as stack:
        bound: list[socket.socket] = []
        for af, kind, proto, _, address in infos:
            try:
                sock = stack.enter_context(socket.socket(af, kind, proto))
            except OSError:
                continue  # the system resolves to addresses of a family that it does not have
            sock.setblocking(False)
            if reuse_address:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if af == socket.AF_INET6 and hasattr(socket, "IPPROTO_IPV6"):
                # Or it would take the port of IPv4 too, which has a socket of its own.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not port and bound:
                address = (address[0], bound[0].getsockname()[1], *address[2:])
            try:
                sock.bind(address)
            except OSError as exc:
                if exc.errno == errno.EADDRNOTAVAIL and len(infos) > 1:
                    sock.close()  # ::1 where IPv6 is switched off
                    continue
                raise OSError(exc.errno, f"cannot listen on {address[0]}:{address[1]}: {exc.strerror}") from None
            bound.append(sock)
        if not bound:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {host!r}: no address of it can be used")
        stack.pop_all()
        return bound


def bind_unix(path: PathLike) -> socket.socket:
    """Bind a socket to a path. A socket that was left there is replaced.

    Args:
        path: Path; a null byte first for the abstract namespace of Linux.

    Raises:
        OSError: The path cannot be bound.
    """
    path = os.fspath(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if path[:1] not in ("\0", b"\0"):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    os.remove(path)
        try:
            sock.bind(path)
        except OSError as exc:
            raise OSError(exc.errno, f"cannot listen on {os.fsdecode(path)!r}: {exc.strerror}") from None
    except BaseException:
        sock.close()
        raise
    return sock


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
        # As many as may wait: what comes meanwhile has to wait for a turn of the loop like everything else.
        for _ in range(self._backlog):
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
        if exc.errno not in _EXHAUSTED:
            self._logger.error("accepting connections failed", exc_info=exc)
            self._unwatch()
            return
        self._logger.error("cannot accept connections for now: %s", exc.strerror)
        self._unwatch()
        self._retry = self._loop.call_later(_RETRY_DELAY, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        if not self._paused:
            self._watch()
