"""Open connected sockets on an event loop.

It knows nothing above TCP. The asyncio client calls it, for the server or for a proxy. It has no deadline of its own:
cancelled, it closes every socket that it has opened, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket

from .._native import Connected
from .._net.addresses import (
    HAPPY_EYEBALLS_DELAY,
    UNIX_RETRY,
    Address,
    Failures,
    from_infos,
    interleaved,
    numeric,
    open_socket,
    start_connecting,
    system_error,
    unresolved,
)
from ._sockets import abandon, until_ready, watches_descriptors

__all__ = ["dial", "dial_address", "dial_unix"]


async def dial_address(host: str, port: int, *, family: int = 0) -> Connected | None:
    """Connect to a TCP server by a numeric address, which needs no resolver.

    Args:
        host: Host name or address.
        port: Port.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only such an address, 0 for both.

    Returns:
        A non-blocking socket, with ``TCP_NODELAY``, which the loop may still watch; ``None`` if the host is no such
        address.

    Raises:
        OSError: The connection failed; its type tells why, such as ``ConnectionRefusedError``.
    """
    attempt = None
    try:
        attempt = Connected.begin(host, port, family)
        while attempt is not None and not attempt.is_connected():
            await until_ready(attempt.fileno(), to_read=False, to_write=True)
    except BaseException as exc:
        if attempt is not None:
            abandon(attempt)
        if isinstance(exc, OSError):
            raise Failures(f"{host}:{port}").sole(host, port, exc) from None
        raise
    return attempt


async def dial(
    host: str,
    port: int,
    *,
    failures: Failures | None = None,
    local_addr: tuple[str, int] | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    happy_eyeballs_delay: float | None = HAPPY_EYEBALLS_DELAY,
    interleave: int = 1,
) -> socket.socket:
    """Connect to a TCP server, by all its addresses if need be: Happy Eyeballs, RFC 8305.

    A loop without ``add_writer``, such as the proactor loop of Windows, tries one address after the other.

    Args:
        host: Host name or address.
        port: Port.
        failures: Where to note the attempts that fail, for a caller that has to say so when it cancels this.
        local_addr: Host and port to connect from, ``None`` to let the system choose.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only these addresses, 0 for both.
        proto: As for ``socket.getaddrinfo``.
        flags: As for ``socket.getaddrinfo``.
        happy_eyeballs_delay: Seconds after which the next address is tried while an attempt is still under way,
            ``None`` to wait until it fails.
        interleave: How many addresses of the first family come before one of the other, 0 to keep the order of the
            resolver.

    Returns:
        A non-blocking socket, with ``TCP_NODELAY``.

    Raises:
        OSError: No address could be connected to; the text lists them all. If all failed for the same reason, its type
            tells it, such as ``ConnectionRefusedError``.
        socket.gaierror: The name could not be resolved.
    """
    loop = asyncio.get_running_loop()
    if failures is None:
        failures = Failures(f"{host}:{port}")
    addresses = interleaved(await _resolve(loop, host, port, family=family, proto=proto, flags=flags), interleave)
    local = None
    if local_addr is not None:
        local = await _resolve(loop, *local_addr, family=family, proto=proto, flags=flags | socket.AI_PASSIVE)
    race = _Race(loop, failures, local)
    try:
        return await race.run(addresses, happy_eyeballs_delay)
    finally:
        race.close()


async def dial_unix(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> socket.socket:
    """Connect to a server on a Unix socket.

    Args:
        path: Path of the socket.

    Returns:
        A non-blocking socket.

    Raises:
        OSError: The connection failed.
    """
    path = os.fspath(path)
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        # Linux answers EAGAIN while the queue of the server is full, and has no event that tells when there
        # is room: https://man7.org/linux/man-pages/man2/connect.2.html. loop.sock_connect takes it for
        # EINPROGRESS.
        while (error := sock.connect_ex(path)) == errno.EAGAIN:
            await asyncio.sleep(UNIX_RETRY)
        if error:
            raise system_error(error, os.fsdecode(path))
        stack.pop_all()
    return sock


class _Race:
    """Attempts to connect that run at the same time; the first to succeed wins.

    There is no task for each: so there is none to wait for when this one is cancelled. ``close`` must follow. It closes
    every socket but the one that ``run`` returned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, failures: Failures, local: list[Address] | None) -> None:
        self._loop = loop
        self._watches = watches_descriptors(loop)
        self._failures = failures
        self._local = local
        self._pending: dict[socket.socket, Address] = {}
        self._winner: socket.socket | None = None
        self._change: asyncio.Future[None] | None = None

    def close(self) -> None:
        for sock in self._pending:
            self._stop(sock)

    async def run(self, addresses: list[Address], delay: float | None) -> socket.socket:
        for address in addresses:
            # RFC 8305, section 5: the next attempt starts after the delay, or as soon as one fails.
            if await self._start(address):
                await self._wait(delay)
            if self._winner is not None:
                break
        while self._winner is None:
            if not self._pending:
                raise self._failures.error()
            await self._wait(None)
        # It belongs to the caller from here on.
        del self._pending[self._winner]
        return self._winner

    async def _start(self, address: Address) -> bool:
        """Return whether there is something to wait for."""
        try:
            sock = open_socket(address, self._local)
        except OSError as exc:
            self._failures.add(address, exc)
            return False
        self._pending[sock] = address
        try:
            if not self._watches:
                await self._loop.sock_connect(sock, address.sockaddr)
                self._winner = sock
                return False
            if start_connecting(sock, address):
                self._winner = sock
                return False
            self._loop.add_writer(sock.fileno(), self._finish, sock)
        except OSError as exc:
            self._lose(sock, exc)
            return False
        return True

    async def _wait(self, delay: float | None) -> None:
        """Return when an attempt has ended, or after the delay."""
        self._change = self._loop.create_future()
        timer = None if delay is None else self._loop.call_later(delay, self._notify)
        try:
            await self._change
        finally:
            self._change = None
            if timer is not None:
                timer.cancel()

    def _finish(self, sock: socket.socket) -> None:
        self._loop.remove_writer(sock.fileno())
        # A second one that succeeds stays among the pending ones, to be closed.
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._lose(sock, system_error(error))
        elif self._winner is None:
            self._winner = sock
        self._notify()

    def _lose(self, sock: socket.socket, exc: OSError) -> None:
        self._failures.add(self._pending.pop(sock), exc)
        self._stop(sock)

    def _stop(self, sock: socket.socket) -> None:
        if self._watches:
            self._loop.remove_writer(sock.fileno())
        sock.close()

    def _notify(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int, *, family: int, proto: int, flags: int
) -> list[Address]:
    if not (proto or flags) and (addresses := numeric(host, port, family)):
        return addresses
    kind = socket.SOCK_STREAM
    try:
        # An address needs no resolver, and so no thread.
        no_resolver = flags | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return from_infos(host, socket.getaddrinfo(host, port, family, kind, proto, no_resolver))
    except socket.gaierror:
        pass
    try:
        infos = await loop.getaddrinfo(host, port, family=family, type=kind, proto=proto, flags=flags)
    except socket.gaierror as exc:
        raise unresolved(host, exc) from None
    return from_infos(host, infos)
