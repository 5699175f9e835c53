"""Listening sockets for the servers of both APIs. It neither resolves names nor accepts connections."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from .._lazy import ssl
from ..typing import PathLike

__all__ = [
    "BROKEN",
    "EXHAUSTED",
    "LOST",
    "MAX_LOST_IN_A_ROW",
    "RETRY_DELAY",
    "Listeners",
    "Place",
]

BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""Errors of ``accept`` that concern the listening socket: it cannot accept any more."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` after which accepting pauses, until resources may be free again."""

LOST = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED",
        "ECONNRESET",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "ENETDOWN",
        "ENETUNREACH",
        "ENONET",
        "ENOPROTOOPT",
        "ENOSR",
        "EOPNOTSUPP",
        "EPERM",
        "EPROTO",
        "EPROTONOSUPPORT",
        "ESOCKTNOSUPPORT",
        "ETIMEDOUT",
    )
    if hasattr(errno, name)
)
"""Errors of ``accept`` that concern one connection, which is lost. Linux reports network errors of the connection,
and EPERM from a firewall: https://man7.org/linux/man-pages/man2/accept.2.html
"""

MAX_LOST_IN_A_ROW = 1024
"""Number of such errors, without an accepted connection in between, after which accepting pauses too."""

RETRY_DELAY = 1.0
"""Seconds to pause until descriptors or memory may be free again, as in asyncio."""

# Number of attempts to find a port that is free on all addresses.
_PORT_ATTEMPTS = 20


@dataclasses.dataclass(kw_only=True)
class Place:
    """The arguments of ``serve`` and ``unix_serve`` that tell where to listen, with the same names.

    Attributes:
        hosts: The names and addresses to resolve, ``None`` for all interfaces.

    Args:
        is_unix: Whether the arguments are those of ``unix_serve``.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value, or excludes another.
    """

    host: str | Iterable[str] | None = None
    port: int | None = None
    sock: socket.socket | None = None
    family: int = 0
    flags: int = 0
    reuse_address: bool | None = None
    reuse_port: bool | None = None
    path: PathLike | None = None
    is_unix: bool = False

    def __post_init__(self) -> None:
        hosts = _hosts_of(self.host)
        number = _port_of(self.port)
        for name in ("family", "flags"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if self.sock is not None:
            _check_socket(self.sock)
            if self.host is not None or self.port is not None:
                raise ValueError("sock excludes host and port")
        if self.is_unix and (self.path is None) == (self.sock is None):
            raise ValueError("path is missing" if self.path is None else "path and sock exclude each other")
        self.port = number
        self.hosts = [] if self.is_unix or self.sock is not None else hosts

    def bind(self, found: Iterable[Sequence[Any]]) -> Listeners:
        """Bind the listening sockets.

        Args:
            found: The results of ``getaddrinfo`` for each of the hosts.

        Raises:
            OSError: An address or the path cannot be bound.
            ValueError: The socket is closed, or SO_REUSEPORT is not supported.
        """
        if self.sock is not None:
            _check_socket(self.sock)
            self.sock.setblocking(False)
            return Listeners((self.sock,))
        if self.path is not None:
            return Listeners((_bind_unix(self.path),), self.path)
        infos = list(dict.fromkeys(chain.from_iterable(found)))
        return Listeners(_bind_addresses(infos, self.port, self.reuse_address, self.reuse_port))


class Listeners:
    """The bound, non-blocking sockets of a server.

    Args:
        sockets: The sockets.
        path: Path of the socket file, if the only socket is a Unix socket that was bound to it just now.

    Attributes:
        sockets: The sockets.
    """

    def __init__(self, sockets: Iterable[socket.socket] = (), path: PathLike | None = None) -> None:
        self.sockets = tuple(sockets)
        self._path = path
        self._file = None if path is None else _file_of(path)

    def close(self) -> None:
        """Close the sockets. Remove the file of a Unix socket, unless it was replaced since."""
        # Only once: a file that is there later belongs to another socket, even if it has the same number.
        file, self._file = self._file, None
        if self._path is not None and file is not None and _file_of(self._path) == file:
            with contextlib.suppress(OSError):
                os.remove(self._path)
        for sock in self.sockets:
            sock.close()


def _hosts_of(host: str | Iterable[str | None] | None) -> list[str | None]:
    """Return the hosts to resolve, ``None`` for all interfaces."""
    if host is None or host == "":
        return [None]
    if isinstance(host, str):
        return [host]
    hosts: list[str | None] = list(host) if isinstance(host, Iterable) else []
    if not hosts or isinstance(host, (bytes, bytearray)) or not all(isinstance(name, str) for name in hosts):
        raise TypeError(f"host must be a str, a list of str or None, not {host!r}")
    return hosts


def _port_of(port: int | None) -> int:
    """Return the port to listen on, 0 to let the system choose."""
    if port is None:
        return 0
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"port must be an int or None, not {type(port).__name__}")
    # ``getaddrinfo`` would reduce larger numbers to other ports.
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, not {port}")
    return port


def _check_socket(sock: object) -> None:
    """Raise TypeError or ValueError unless a server can listen on the socket of the user."""
    if not isinstance(sock, socket.socket):
        raise TypeError(f"sock must be a socket or None, not {type(sock).__name__}")
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("sock must be a plain socket; pass ssl for TLS")
    if sock.fileno() < 0:
        raise ValueError("sock is closed")


def _bind_addresses(
    infos: Sequence[Any], port: int | None, reuse_address: bool | None, reuse_port: bool | None
) -> list[socket.socket]:
    if reuse_address is None:
        reuse_address = os.name == "posix"
    if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
        raise ValueError("reuse_port is not supported by this system")
    options = [socket.SO_REUSEADDR] if reuse_address else []
    if reuse_port:
        options.append(socket.SO_REUSEPORT)
    attempts = 1 if port else _PORT_ATTEMPTS
    while True:
        attempts -= 1
        try:
            return _bind_all(infos, not port, options)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or not attempts:
                raise


def _bind_all(infos: Sequence[Any], same_port: bool, options: list[int]) -> list[socket.socket]:
    with contextlib.ExitStack() as stack:
        bound: list[socket.socket] = []
        for family, kind, proto, _, address in infos:
            try:
                sock = stack.enter_context(socket.socket(family, kind, proto))
            except OSError as exc:
                if exc.errno in EXHAUSTED:
                    raise
                continue  # the system resolves addresses of a family that it does not support
            sock.setblocking(False)
            for option in options:
                sock.setsockopt(socket.SOL_SOCKET, option, 1)
            if family == socket.AF_INET6 and hasattr(socket, "IPPROTO_IPV6"):
                # Without it, the socket would also take the IPv4 port, which has its own socket.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if same_port and bound:
                address = (address[0], bound[0].getsockname()[1], *address[2:])
            try:
                sock.bind(address)
            except OSError as exc:
                if exc.errno == errno.EADDRNOTAVAIL and len(infos) > 1:
                    sock.close()  # ::1 without IPv6 support
                    continue
                raise OSError(exc.errno, f"cannot listen on {address[0]}:{address[1]}: {exc.strerror}") from None
            bound.append(sock)
        if not bound:
            raise OSError(errno.EADDRNOTAVAIL, "cannot listen: none of the addresses can be used")
        stack.pop_all()
        return bound


def _bind_unix(path: PathLike) -> socket.socket:
    """Bind to a path, or a name in the abstract namespace of Linux. An existing socket file is replaced."""
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
            # The error has no number if the path is too long.
            reason = exc.strerror or str(exc)
            raise OSError(exc.errno, f"cannot listen on {os.fsdecode(path)!r}: {reason}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _file_of(path: PathLike) -> tuple[int, int] | None:
    """Return device and inode of a path, ``None`` without a file, as in the abstract namespace of Linux."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
