"""Attempts to connect that run at the same time, of which the first to succeed wins: Happy Eyeballs, RFC 8305.

It waits for nothing, and its time is an argument: each kind of client waits in its own way.
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
    """Which address is tried next, and when.

    Args:
        addresses: In the order in which they are tried, each once.
        delay: Seconds after which the next one is tried while an attempt is under way, ``None`` to wait until it fails.

    Attributes:
        due: When the next one is tried, in the time of the caller: ``-inf`` for at once, ``inf`` for never.
    """

    def __init__(self, addresses: Iterable[Address], delay: float | None) -> None:
        self.due = -math.inf
        self._delay = math.inf if delay is None else delay
        self._waiting = collections.deque(addresses)
        self._pending: set[Address] = set()

    @property
    def is_lost(self) -> bool:
        """Whether all of them have failed."""
        return not self._waiting and not self._pending

    def next_address(self, now: float) -> Address | None:
        """Return the address to be tried now, ``None`` for none. It has :meth:`started` or :meth:`failed` then.

        Args:
            now: The present time.
        """
        return self._waiting.popleft() if self._waiting and now >= self.due else None

    def started(self, address: Address, now: float) -> None:
        """Note that an attempt is under way.

        Args:
            address: Where it goes.
            now: The present time.
        """
        self._pending.add(address)
        # RFC 8305, section 5: the next attempt starts after the delay, or as soon as one fails.
        self.due = now + self._delay if self._waiting else math.inf

    def failed(self, address: Address) -> None:
        """Note that an attempt has failed, be it at once.

        Args:
            address: Where it went.
        """
        self._pending.discard(address)
        self.due = -math.inf if self._waiting else math.inf


class Wait(NamedTuple):
    """What :func:`attempts` waits for: that one of the sockets can be written to, until a time, ``inf`` for ever."""

    socks: tuple[socket.socket, ...]
    until: float


def attempts(
    race: Race, failures: Failures, local: list[Address] | None, clock: Callable[[], float]
) -> Generator[Wait, Iterable[socket.socket], socket.socket]:
    """Make the attempts of a race. Whoever drives it waits, and says which of the sockets can be written to.

    Ended early, it closes every socket that it has opened. So it does at its end, but for the one that it returns.

    Args:
        race: Says which, and when.
        failures: Where to note those that fail.
        local: Where to connect from, ``None`` to let the system choose.
        clock: Returns the present time.

    Returns:
        The socket that is connected: non-blocking, with ``TCP_NODELAY``.

    Raises:
        OSError: None of the addresses could be connected to.
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
