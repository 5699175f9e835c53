"""The addresses of a host: their order, sockets for them, and parallel attempts to connect (RFC 8305).

It neither resolves names nor waits, and has no clock: the clients of each API do, and pass the time.
"""

from __future__ import annotations

import _socket
import collections
import contextlib
import errno
import math
import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

__all__ = [
    "Address",
    "Failures",
    "HAPPY_EYEBALLS_DELAY",
    "Race",
    "UNIX_RETRY",
    "Wait",
    "attempts",
    "from_infos",
    "interleave_families",
    "is_socket_replaced",
    "numeric_address",
    "open_socket",
    "resolution_error",
    "socket_addresses",
    "start_connecting",
    "system_error",
]

HAPPY_EYEBALLS_DELAY = 0.25
"""Seconds between attempts. RFC 8305, section 8: the recommended Connection Attempt Delay."""

# None if the class was replaced before this module was imported.
_ORIGINAL = socket.socket if socket.socket.__module__ == "socket" else None
_CONNECT = _socket.socket.connect

UNIX_RETRY = 0.005
"""Seconds until the next attempt to connect to a Unix socket whose queue is full: a delay that users do not notice, but
long compared with the cost of an attempt.
"""


class Address(NamedTuple):
    """The items of a result of ``getaddrinfo`` that a socket needs."""

    family: int
    kind: int
    proto: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def from_infos(host: str, infos: Iterable[tuple[int, int, int, str, tuple[Any, ...]]]) -> list[Address]:
    """Return addresses without duplicates, in the order of the resolver.

    Args:
        host: The name that was resolved.
        infos: The result of ``getaddrinfo`` for it.

    Raises:
        OSError: There are no addresses.
    """
    # The system may list an address twice, for example for two lines of its hosts file.
    unique = dict.fromkeys(Address(family, kind, proto, sockaddr) for family, kind, proto, _, sockaddr in infos)
    if not unique:
        raise OSError(f"cannot resolve host {host!r}: there is no address")
    return list(unique)


def is_socket_replaced() -> bool:
    """Return whether the program has replaced ``socket.socket`` or its method ``connect``.

    PySocks does this to send all connections through a proxy; other programs do it to block some. Then the native
    core, which creates sockets without Python, must not connect.
    """
    return socket.socket is not _ORIGINAL or _ORIGINAL.connect is not _CONNECT


def numeric_address(host: str, port: int, family: int) -> list[Address]:
    """Return the address if the host is an IPv4 address, as every resolver does; an empty list for other hosts.

    Args:
        host: Host name or address.
        port: Port.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only such addresses, 0 for both.
    """
    if family not in (0, socket.AF_INET):
        return []
    try:
        # Accepts only the usual notation, which resolvers return too.
        socket.inet_pton(socket.AF_INET, host)
    except (OSError, ValueError):
        return []
    return [Address(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port))]


def resolution_error(host: str, exc: socket.gaierror) -> socket.gaierror:
    """Return an exception with the name that could not be resolved.

    Args:
        host: The name.
        exc: The exception of the resolver.
    """
    return socket.gaierror(exc.errno, f"cannot resolve host {host!r}: {exc.strerror}")


def interleave_families(addresses: Iterable[Address], first_count: int) -> list[Address]:
    """Alternate between address families (RFC 8305, section 4), beginning with the family of the first address.

    Args:
        addresses: At least one address.
        first_count: Number of addresses of the first family before one of the other family, 0 to keep the order.
    """
    addresses = list(addresses)
    if not first_count or len(addresses) == 1:
        return addresses
    return list(_interleave(addresses, first_count))


def _interleave(addresses: Iterable[Address], first_count: int) -> Iterator[Address]:
    families: dict[int, list[Address]] = {}
    for address in addresses:
        families.setdefault(address.family, []).append(address)
    lists = list(families.values())
    head, lists[0] = lists[0][: first_count - 1], lists[0][first_count - 1 :]
    rounds = chain.from_iterable(zip_longest(*lists))
    return chain(head, (address for address in rounds if address is not None))


def open_socket(address: Address, local_addresses: list[Address] | None) -> socket.socket:
    """Return a socket for connecting to an address: non-blocking, with ``TCP_NODELAY``.

    Args:
        address: The address to connect to.
        local_addresses: The addresses to connect from, ``None`` to let the system choose.

    Raises:
        OSError: The system does not support such sockets, or no local address can be used.
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
    """Begin to connect a socket; return whether it is already connected.

    Args:
        sock: A non-blocking socket. If it is not connected yet, it becomes writable when the attempt has ended.
        address: The address to connect to.

    Raises:
        OSError: The attempt failed at once.
    """
    try:
        # Not connect_ex, because programs that replace `connect` may not replace it.
        sock.connect(address.sockaddr)
    except BlockingIOError:
        pass
    else:
        return True
    # An address of this machine is connected already, although the system reports that the attempt is under way.
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


def socket_addresses(sock: socket.socket) -> dict[str, Any]:
    """Return the addresses of both ends of a connected socket, as keyword arguments of a connection.

    Args:
        sock: The socket.
    """
    remote = None
    # If the peer has already disconnected, the next use of the socket reports it.
    with contextlib.suppress(OSError):
        remote = sock.getpeername()
    return {"local_address": sock.getsockname(), "remote_address": remote}


def system_error(number: int, *filename: str) -> OSError:
    """Return the exception for an error number, with the matching subclass of ``OSError``.

    Args:
        number: The error number.
        *filename: The file concerned.
    """
    return OSError(number, os.strerror(number), *filename)


class Failures:
    """Collects failed attempts to connect to a target, and creates exceptions from them.

    Args:
        target: Name of the target for users, such as host and port.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._failures: list[tuple[Address, OSError]] = []

    def add(self, address: Address, exc: OSError) -> None:
        """Add a failed attempt.

        Args:
            address: The address.
            exc: The error.
        """
        self._failures.append((address, exc))

    def single_error(self, host: str, port: int, exc: OSError) -> OSError:
        """Return the exception for a target that is a numeric address.

        Args:
            host: The address.
            port: The port.
            exc: The error.
        """
        self.add(Address(socket.AF_UNSPEC, socket.SOCK_STREAM, socket.IPPROTO_TCP, (host, port)), exc)
        return self.error()

    def error(self) -> OSError:
        """Return the exception for a target whose attempts have all failed."""
        text = self._describe(f"cannot connect to {self.target}")
        numbers = {exc.errno for _, exc in self._failures}
        number = numbers.pop() if len(numbers) == 1 else None
        # With a number, OSError creates the matching subclass.
        return OSError(text) if number is None else OSError(number, text)

    def timeout_text(self) -> str:
        """Return the text of the exception for a deadline that passed before an attempt succeeded."""
        return self._describe(f"timed out while connecting to {self.target}")

    def _describe(self, text: str) -> str:
        causes = "; ".join(f"{address}: {exc.strerror or exc}" for address, exc in self._failures)
        return f"{text} ({causes})" if causes else text


class Race:
    """Decides which address is tried next, and when.

    Args:
        addresses: Different addresses, in the order in which to try them.
        delay: Seconds after which the next address is tried while an attempt is under way, ``None`` to wait until the
            attempt fails.

    Attributes:
        due: Time of the next attempt on the clock of the caller: ``-inf`` for now, ``inf`` for never.
    """

    def __init__(self, addresses: Iterable[Address], delay: float | None) -> None:
        self.due = -math.inf
        self._delay = math.inf if delay is None else delay
        self._waiting = collections.deque(addresses)
        self._pending: set[Address] = set()

    @property
    def is_lost(self) -> bool:
        """Whether all attempts have failed."""
        return not self._waiting and not self._pending

    def next_address(self, now: float) -> Address | None:
        """Return the address to try now, ``None`` for none. Report the attempt to :meth:`started` or :meth:`failed`.

        Args:
            now: The current time.
        """
        return self._waiting.popleft() if self._waiting and now >= self.due else None

    def started(self, address: Address, now: float) -> None:
        """Note that an attempt is under way.

        Args:
            address: Its address.
            now: The current time.
        """
        self._pending.add(address)
        # RFC 8305, section 5: the next attempt starts after the delay, or as soon as one fails.
        self.due = now + self._delay if self._waiting else math.inf

    def failed(self, address: Address) -> None:
        """Note that an attempt has failed, perhaps at once.

        Args:
            address: Its address.
        """
        self._pending.discard(address)
        self.due = -math.inf if self._waiting else math.inf


class Wait(NamedTuple):
    """Request of :func:`attempts`: wait until one of the sockets is writable, or until a time; ``inf`` for no limit."""

    socks: tuple[socket.socket, ...]
    until: float


def attempts(
    race: Race, failures: Failures, local: list[Address] | None, clock: Callable[[], float]
) -> Generator[Wait, Iterable[socket.socket], socket.socket]:
    """Run the attempts of a race. The generator yields :class:`Wait`, and the caller sends back the writable sockets.

    When the generator ends or is closed, it closes all sockets except the one that it returns.

    Args:
        race: The race.
        failures: Collects the failed attempts.
        local: The addresses to connect from, ``None`` to let the system choose.
        clock: Returns the current time.

    Returns:
        The connected socket: non-blocking, with ``TCP_NODELAY``.

    Raises:
        OSError: All attempts have failed.
    """
    pending: dict[socket.socket, Address] = {}
    try:
        while True:
            address = race.next_address(clock())
            if address is not None:
                sock: socket.socket | None = None
                try:
                    sock = open_socket(address, local)
                    pending[sock] = address
                    if start_connecting(sock, address):
                        del pending[sock]
                        return sock
                except OSError as exc:
                    if sock is not None:
                        del pending[sock]
                        sock.close()
                    failures.add(address, exc)
                    race.failed(address)
                    continue
                race.started(address, clock())
            elif race.is_lost:
                raise failures.error()
            for sock in (yield Wait(tuple(pending), race.due)):
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                address = pending.pop(sock)
                if not error:
                    return sock
                sock.close()
                failures.add(address, system_error(error))
                race.failed(address)
    finally:
        for sock in pending:
            sock.close()
