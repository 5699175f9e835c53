"""The addresses of a name: their order, sockets for them, and what is said when none could be connected to.

It resolves nothing and waits for nothing: each kind of client does, in its own way.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

__all__ = [
    "HAPPY_EYEBALLS_DELAY",
    "UNIX_RETRY",
    "Address",
    "Failures",
    "ends_of",
    "from_infos",
    "interleaved",
    "is_socket_replaced",
    "numeric",
    "open_socket",
    "start_connecting",
    "system_error",
    "unresolved",
]

HAPPY_EYEBALLS_DELAY = 0.25
"""Seconds between attempts. RFC 8305, section 8: the recommended Connection Attempt Delay."""

# None if it was replaced before this was imported.
_ORIGINAL = socket.socket if socket.socket.__module__ == "socket" else None
_CONNECT = _socket.socket.connect

UNIX_RETRY = 0.005
"""Seconds until a Unix socket whose queue is full is tried again.

Short against the patience of a person, long against the work of one attempt.
"""


class Address(NamedTuple):
    """What ``getaddrinfo`` tells, as far as a socket needs it."""

    family: int
    kind: int
    proto: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def from_infos(host: str, infos: Iterable[tuple[int, int, int, str, tuple[Any, ...]]]) -> list[Address]:
    """Return addresses, each once, in the order of the resolver.

    Args:
        host: The name that was resolved.
        infos: What ``getaddrinfo`` returned for it.

    Raises:
        OSError: There is none.
    """
    # The system may list an address twice, such as for two lines of its hosts file.
    unique = dict.fromkeys(Address(family, kind, proto, sockaddr) for family, kind, proto, _, sockaddr in infos)
    if not unique:
        raise OSError(f"cannot resolve host {host!r}: there is no address")
    return list(unique)


def is_socket_replaced() -> bool:
    """Return whether the program has put something else in place of ``socket.socket`` or its method ``connect``.

    PySocks does this to send all connections through a proxy, others do it to refuse some: the native core, which makes
    sockets without Python, must not connect in such a program.
    """
    return socket.socket is not _ORIGINAL or _ORIGINAL.connect is not _CONNECT


def numeric(host: str, port: int, family: int) -> list[Address]:
    """Return what every resolver returns for an IPv4 address, and nothing for any other host.

    Args:
        host: Host name or address.
        port: Port.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only such addresses, 0 for both.
    """
    if family not in (0, socket.AF_INET):
        return []
    try:
        # It takes the usual spelling only, which is that of the resolver.
        socket.inet_pton(socket.AF_INET, host)
    except (OSError, ValueError):
        return []
    return [Address(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port))]


def unresolved(host: str, exc: socket.gaierror) -> socket.gaierror:
    """Return an exception that says which name could not be resolved.

    Args:
        host: The name.
        exc: What the resolver raised.
    """
    return socket.gaierror(exc.errno, f"cannot resolve host {host!r}: {exc.strerror}")


def interleaved(addresses: Iterable[Address], first_count: int) -> list[Address]:
    """Alternate between families, as RFC 8305, section 4, says, beginning with that of the first address.

    Args:
        addresses: One at least.
        first_count: How many addresses of the first family come before one of the other, 0 to keep the order.
    """
    addresses = list(addresses)
    if not first_count or len(addresses) == 1:
        return addresses
    return list(_interleaved(addresses, first_count))


def _interleaved(addresses: Iterable[Address], first_count: int) -> Iterator[Address]:
    families: dict[int, list[Address]] = {}
    for address in addresses:
        families.setdefault(address.family, []).append(address)
    lists = list(families.values())
    head, lists[0] = lists[0][: first_count - 1], lists[0][first_count - 1 :]
    rounds = chain.from_iterable(zip_longest(*lists))
    return chain(head, (address for address in rounds if address is not None))


def open_socket(address: Address, local_addresses: list[Address] | None) -> socket.socket:
    """Return a socket that can connect to an address: non-blocking, with ``TCP_NODELAY``.

    Args:
        address: Where it is to connect to.
        local_addresses: Where it may connect from, ``None`` to let the system choose.

    Raises:
        OSError: The system has no such sockets, or none of the local addresses fits.
    """
    sock = socket.socket(address.family, address.kind, address.proto)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if local_addresses is not None:
            _bind(sock, address, local_addresses)
    except BaseException:
        sock.close()
        raise
    return sock


def start_connecting(sock: socket.socket, address: Address) -> bool:
    """Begin to connect a socket to an address, and return whether it is connected already.

    Args:
        sock: A non-blocking socket. Unless it is connected, it becomes writable when the attempt has ended.
        address: Where to connect to.

    Raises:
        OSError: The attempt failed at once.
    """
    try:
        # Not connect_ex, which those who replace this method may leave as it is.
        sock.connect(address.sockaddr)
    except BlockingIOError:
        pass
    else:
        return True
    # An address of this machine has answered by now, although the system says that the attempt is under way.
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _bind(sock: socket.socket, address: Address, local_addresses: list[Address]) -> None:
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


def ends_of(sock: socket.socket) -> dict[str, Any]:
    """Return the addresses of a connected socket's ends, by the names of a connection's arguments.

    Args:
        sock: The socket.
    """
    remote = None
    # The other end may be gone already: whoever goes on with the socket will learn it.
    with contextlib.suppress(OSError):
        remote = sock.getpeername()
    return {"local_address": sock.getsockname(), "remote_address": remote}


def system_error(number: int, *filename: str) -> OSError:
    """Return the exception for an error number, of the type that belongs to it.

    Args:
        number: The error number.
        *filename: What it is about.
    """
    return OSError(number, os.strerror(number), *filename)


class Failures:
    """The attempts to connect to a target that have failed, and the exceptions made of them.

    Args:
        target: What users call it, such as host and port.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._failures: list[tuple[Address, OSError]] = []

    def add(self, address: Address, exc: OSError) -> None:
        """Remember that an attempt has failed.

        Args:
            address: Where it went.
            exc: Why it failed.
        """
        self._failures.append((address, exc))

    def sole(self, host: str, port: int, exc: OSError) -> OSError:
        """Return the exception for a target that is a numeric address, which could not be connected to.

        Args:
            host: The address.
            port: Its port.
            exc: Why.
        """
        self.add(Address(socket.AF_UNSPEC, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port)), exc)
        return self.error()

    def error(self) -> OSError:
        """Return the exception for a target none of whose addresses could be connected to."""
        text = self._describe(f"cannot connect to {self.target}")
        numbers = {exc.errno for _, exc in self._failures}
        number = numbers.pop() if len(numbers) == 1 else None
        # With a number, OSError makes the type that belongs to it.
        return OSError(text) if number is None else OSError(number, text)

    def timeout_text(self) -> str:
        """Return the text of the exception for a deadline that passed before an attempt has succeeded."""
        return self._describe(f"timed out while connecting to {self.target}")

    def _describe(self, text: str) -> str:
        causes = "; ".join(f"{address}: {exc.strerror or exc}" for address, exc in self._failures)
        return f"{text} ({causes})" if causes else text
