"""Sockets to listen on, for servers of every kind.

It resolves no name and accepts nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterable, Sequence
from typing import Any

from .._lazy import ssl
from ..typing import PathLike

__all__ = [
    "BROKEN",
    "EXHAUSTED",
    "LOST",
    "LOST_IN_A_ROW",
    "RETRY_DELAY",
    "bind_addresses",
    "bind_unix",
    "check_socket",
    "file_of",
    "hosts_of",
    "port_of",
    "remove_file",
]

BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""Errors of ``accept`` that are the listening socket's: it will not accept any more."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of ``accept`` after which it is worth to wait."""

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
"""Errors of ``accept`` that are those of one connection, which is gone. Linux passes on what the network says of it,
and EPERM from a firewall: https://man7.org/linux/man-pages/man2/accept.2.html
"""

LOST_IN_A_ROW = 1024
"""How many such errors without a connection in between are more than bad luck: then it is worth to wait, too."""

RETRY_DELAY = 1.0
"""Seconds to wait for descriptors or memory to become free: as in asyncio."""

# How often a port is chosen anew that is free for one address and taken for another.
_PORT_ATTEMPTS = 20


def hosts_of(host: str | Iterable[str | None] | None) -> list[str | None]:
    """Return the hosts to resolve, ``None`` for all interfaces.

    Args:
        host: What the user passed.

    Raises:
        TypeError: It is something else.
    """
    if host is None or host == "":
        return [None]
    if isinstance(host, str):
        return [host]
    hosts: list[str | None] = list(host) if isinstance(host, Iterable) else []
    if not hosts or isinstance(host, (bytes, bytearray)) or not all(isinstance(name, str) for name in hosts):
        raise TypeError(f"host must be a str, a list of str or None, not {host!r}")
    return hosts


def port_of(port: int | None) -> int:
    """Return the port to listen on, 0 for one that the system chooses.

    Args:
        port: What the user passed.

    Raises:
        TypeError: It is something else.
        ValueError: There is no such port. ``getaddrinfo`` would take another one.
    """
    if port is None:
        return 0
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"port must be an int or None, not {type(port).__name__}")
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, not {port}")
    return port


def check_socket(sock: object) -> None:
    """Raise TypeError or ValueError unless a server can listen on what the user passed.

    Args:
        sock: A socket, one hopes.
    """
    if not isinstance(sock, socket.socket):
        raise TypeError(f"sock must be a socket or None, not {type(sock).__name__}")
    if isinstance(sock, ssl.SSLSocket):
        raise TypeError("sock must be a plain socket; pass ssl for TLS")
    if sock.fileno() < 0:
        raise ValueError("sock is closed")


def bind_addresses(
    infos: Sequence[Any], *, port: int | None, reuse_address: bool | None, reuse_port: bool | None
) -> list[socket.socket]:
    """Bind sockets to addresses.

    Args:
        infos: What ``getaddrinfo`` returned.
        port: Port; ``None`` or 0 for one that the system chooses, the same for all addresses.
        reuse_address: Whether to set SO_REUSEADDR; ``None`` to do so on POSIX.
        reuse_port: Whether to set SO_REUSEPORT.

    Returns:
        Non-blocking sockets, one at least.

    Raises:
        OSError: An address cannot be bound.
        ValueError: SO_REUSEPORT is not supported.
    """
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
                continue  # the system resolves to addresses of a family that it does not have
            sock.setblocking(False)
            for option in options:
                sock.setsockopt(socket.SOL_SOCKET, option, 1)
            if family == socket.AF_INET6 and hasattr(socket, "IPPROTO_IPV6"):
                # Or it would take the port of IPv4 too, which has a socket of its own.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if same_port and bound:
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
            raise OSError(errno.EADDRNOTAVAIL, "cannot listen: none of the addresses can be used")
        stack.pop_all()
        return bound


def bind_unix(path: PathLike) -> socket.socket:
    """Bind a non-blocking socket to a path. A socket that was left there is replaced.

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
            # It has no number if the path is too long.
            reason = exc.strerror or str(exc)
            raise OSError(exc.errno, f"cannot listen on {os.fsdecode(path)!r}: {reason}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def file_of(path: PathLike) -> tuple[int, int] | None:
    """Return which file a path names, ``None`` if it names none: it may be in the abstract namespace of Linux.

    Args:
        path: Path of a Unix socket.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def remove_file(path: PathLike, file: tuple[int, int] | None) -> None:
    """Remove the file of a Unix socket, unless somebody else has put another one there.

    Args:
        path: Its path.
        file: What :func:`file_of` returned when it was bound.
    """
    if file is not None and file_of(path) == file:
        with contextlib.suppress(OSError):
            os.remove(path)
