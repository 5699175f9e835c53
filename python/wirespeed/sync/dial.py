"""Open connected sockets, blocking, without threads.

It knows nothing above TCP. Blocking clients call it, for the server or for a proxy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

__all__ = ["dial", "dial_unix"]

# RFC 8305, section 8: the recommended Connection Attempt Delay.
_HAPPY_EYEBALLS_DELAY = 0.25

# WSAEWOULDBLOCK is what Windows says instead of EINPROGRESS.
_IN_PROGRESS = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK)})

# Short against the patience of a person, long against the work of one attempt.
_UNIX_RETRY = 0.005


class _Address(NamedTuple):
    family: int
    kind: int
    proto: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dial(
    host: str,
    port: int,
    *,
    deadline: float | None,
    local_addr: tuple[str, int] | None = None,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
    happy_eyeballs_delay: float | None = _HAPPY_EYEBALLS_DELAY,
    interleave: int = 1,
) -> socket.socket:
    """Connect to a TCP server, by all its addresses if need be: Happy Eyeballs, RFC 8305.

    Name resolution blocks for as long as the system takes: the deadline is looked at again after it.

    Args:
        host: Host name or address.
        port: Port.
        deadline: Time of ``time.monotonic`` by which the connection must be open, ``None`` for no limit.
        local_addr: Host and port to connect from, ``None`` to let the system choose.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only these addresses, 0 for both.
        proto: As for ``socket.getaddrinfo``.
        flags: As for ``socket.getaddrinfo``.
        happy_eyeballs_delay: Seconds after which the next address is tried while an attempt is still under way,
            ``None`` to wait until it fails.
        interleave: How many addresses of the first family come before one of the other, 0 to keep the order of the
            resolver.

    Returns:
        A socket in blocking mode, with ``TCP_NODELAY``.

    Raises:
        OSError: No address could be connected to; the text lists them all. If all failed for the same reason, its type
            tells it, such as ``ConnectionRefusedError``.
        socket.gaierror: The name could not be resolved.
        TimeoutError: The deadline passed.
    """
    addresses = _resolve(host, port, family=family, proto=proto, flags=flags)
    if interleave:
        addresses = list(_interleaved(addresses, interleave))
    local = None
    if local_addr is not None:
        local = _resolve(*local_addr, family=family, proto=proto, flags=flags | socket.AI_PASSIVE)
    with contextlib.closing(_Race(f"{host}:{port}", local)) as race:
        return race.run(addresses, deadline, happy_eyeballs_delay)


def dial_unix(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], *, deadline: float | None) -> socket.socket:
    """Connect to a server on a Unix socket.

    Args:
        path: Path of the socket.
        deadline: Time of ``time.monotonic`` by which the connection must be open, ``None`` for no limit.

    Returns:
        A socket in blocking mode.

    Raises:
        OSError: The connection failed.
        TimeoutError: The deadline passed.
    """
    path = os.fspath(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux answers EAGAIN to a socket that must not block while the queue of the server is full, and has no event
        # that tells when there is room: https://man7.org/linux/man-pages/man2/connect.2.html
        sock.setblocking(deadline is None)
        while (error := sock.connect_ex(path)) == errno.EAGAIN:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"timed out while connecting to {os.fsdecode(path)}")
            time.sleep(_UNIX_RETRY)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(path))
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock


class _Race:
    """Attempts to connect that run at the same time; the first to succeed wins.

    ``close`` must follow. It closes every socket but the one that ``run`` returned.
    """

    def __init__(self, target: str, local: list[_Address] | None) -> None:
        self._target = target
        self._local = local
        self._selector = selectors.DefaultSelector()
        self._pending: dict[socket.socket, _Address] = {}
        self._failures: list[tuple[_Address, OSError]] = []

    def close(self) -> None:
        self._selector.close()
        for sock in self._pending:
            sock.close()

    def run(self, addresses: list[_Address], deadline: float | None, delay: float | None) -> socket.socket:
        waiting = iter(addresses)
        exhausted = False
        while True:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(self._describe(f"timed out while connecting to {self._target}"))
            if not exhausted:
                address = next(waiting, None)
                exhausted = address is None
                if address is not None and (winner := self._start(address)) is not None:
                    return winner
            if not self._pending and exhausted:
                raise self._error()
            if not exhausted and address not in self._pending.values():
                continue  # it failed at once
            # RFC 8305, section 5: the next attempt starts after the delay, or as soon as one fails.
            next_start = None if exhausted or delay is None else time.monotonic() + delay
            winner = self._wait(deadline, next_start, until_failure=not exhausted)
            if winner is not None:
                return winner

    def _start(self, address: _Address) -> socket.socket | None:
        try:
            sock = socket.socket(address.family, address.kind, address.proto)
        except OSError as exc:
            self._failures.append((address, exc))
            return None
        self._pending[sock] = address
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._local is not None:
                _bind(sock, address, self._local)
            error = sock.connect_ex(address.sockaddr)
            if error == 0:
                return self._win(sock)
            if error not in _IN_PROGRESS:
                raise OSError(error, os.strerror(error))
            # Windows reports a failed connection as an exceptional event; selectors adds that one by itself.
            self._selector.register(sock, selectors.EVENT_WRITE)
        except OSError as exc:
            self._lose(sock, exc)
        return None

    def _wait(self, deadline: float | None, next_start: float | None, *, until_failure: bool) -> socket.socket | None:
        """Return the socket that got connected, ``None`` to look at the deadline and the next address."""
        while self._pending:
            limit = min((time_ for time_ in (deadline, next_start) if time_ is not None), default=None)
            events = self._selector.select(None if limit is None else max(0, limit - time.monotonic()))
            failed = False
            for key, _ in events:
                sock: socket.socket = key.fileobj  # type: ignore[assignment]  # it is what _start registered
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error == 0:
                    return self._win(sock)
                self._selector.unregister(sock)
                self._lose(sock, OSError(error, os.strerror(error)))
                failed = True
            if (failed and until_failure) or (limit is not None and time.monotonic() >= limit):
                return None
        return None

    def _win(self, sock: socket.socket) -> socket.socket:
        sock.setblocking(True)
        # From here on it belongs to the caller.
        del self._pending[sock]
        return sock

    def _lose(self, sock: socket.socket, exc: OSError) -> None:
        self._failures.append((self._pending.pop(sock), exc))
        sock.close()

    def _error(self) -> OSError:
        text = self._describe(f"cannot connect to {self._target}")
        numbers = {exc.errno for _, exc in self._failures}
        # With a number, OSError makes the type that belongs to it.
        return OSError(numbers.pop(), text) if len(numbers) == 1 else OSError(text)

    def _describe(self, text: str) -> str:
        causes = "; ".join(f"{address}: {exc.strerror or exc}" for address, exc in self._failures)
        return f"{text} ({causes})" if causes else text


def _bind(sock: socket.socket, address: _Address, local_addresses: list[_Address]) -> None:
    error = OSError(errno.EADDRNOTAVAIL, "local_addr has no address of this family")
    for local in local_addresses:
        if local.family != address.family:
            continue
        try:
            sock.bind(local.sockaddr)
        except OSError as exc:
            error = OSError(exc.errno, f"cannot bind to local_addr {local}: {exc.strerror}")
        else:
            return
    raise error


def _resolve(host: str, port: int, *, family: int, proto: int, flags: int) -> list[_Address]:
    try:
        infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, proto, flags)
    except socket.gaierror as exc:
        raise socket.gaierror(exc.errno, f"cannot resolve host {host!r}: {exc.strerror}") from None
    # The system may list an address twice, such as for two lines of its hosts file.
    unique = dict.fromkeys(_Address(family, kind, proto, sockaddr) for family, kind, proto, _, sockaddr in infos)
    if not unique:
        raise OSError(f"cannot resolve host {host!r}: there is no address")
    return list(unique)


def _interleaved(addresses: Iterable[_Address], first_count: int) -> Iterator[_Address]:
    """Alternate between families, as RFC 8305, section 4, says, beginning with that of the first address."""
    families: dict[int, list[_Address]] = {}
    for address in addresses:
        families.setdefault(address.family, []).append(address)
    lists = list(families.values())
    head, lists[0] = lists[0][: first_count - 1], lists[0][first_count - 1 :]
    rounds = chain.from_iterable(zip_longest(*lists))
    return chain(head, (address for address in rounds if address is not None))
