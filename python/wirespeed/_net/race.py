"""Parallel attempts to connect, of which the first success wins (Happy Eyeballs, RFC 8305).

It does not wait and has no clock: the clients of each API wait, and pass the time.
"""

from __future__ import annotations

import collections
import math
import socket
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from .addresses import Address, Failures, open_socket, start_connecting, system_error

__all__ = ["Race", "Wait", "attempts"]


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
