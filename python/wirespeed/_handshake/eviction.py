"""Selects the pending handshakes to close when more clients are in the opening handshake than the limit allows.

A new client replaces a client that lets the server wait. The victim is, of the address with most pending handshakes,
the one that has sent nothing for longest. So a flood of half-open clients evicts itself, and other clients are served.
Clients get some time to send before they can be evicted, so the limit may be exceeded for a short time.

The rule is native and shared with the engine. There are no sockets, clocks or locks here: times are arguments, and
callers with several threads use their own lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from .._native import HandshakeLimiter

__all__ = [
    "BURST",
    "GRACE",
    "PATIENCE",
    "EvictionQueue",
    "Candidate",
    "Entry",
    "LingeringSocket",
    "host_of",
    "origin_of",
]

PATIENCE = HandshakeLimiter.PATIENCE
"""Seconds that a client may be silent when the limit is exceeded."""

GRACE = HandshakeLimiter.GRACE
"""Seconds that a client may be silent when the hard limit is exceeded, or the system is out of descriptors."""

BURST = HandshakeLimiter.BURST
"""The hard limit, as a multiple of the limit."""


class Candidate(Protocol):
    """A pending handshake that can be closed."""

    def has_unread(self) -> bool:
        """Return whether the socket has unread input: then the server is late, not the client."""

    def drop(self) -> None:
        """Close the handshake at once. It has been removed before."""


class LingeringSocket:
    """A refused client that still has time to read the response.

    Args:
        abort: Ends its connection at once.
    """

    __slots__ = ("_abort",)

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort

    def has_unread(self) -> bool:
        """Return False, because further input of a refused client is ignored."""
        return False

    def drop(self) -> None:
        """Close the connection at once."""
        self._abort()


class Entry:
    """Identifies a pending handshake, from accepting the client until its request is complete.

    It does not refer to the handler of the handshake, which may refer to it. A cycle would outlive a flood.

    Attributes:
        address: Address of the client, as returned by ``accept``.
        origin: Key by which handshakes of one client are counted together: see :func:`origin_of`.
        key: A unique number.
    """

    __slots__ = ("address", "key", "origin")

    def __init__(self, address: Any, key: int) -> None:
        self.address = address
        self.origin = origin_of(address)
        self.key = key


class EvictionQueue:
    """The pending opening handshakes of a server, as far as they wait for the client.

    Each method takes at most logarithmic time in their number.

    Args:
        limit: Maximum number of pending handshakes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = HandshakeLimiter(limit, PATIENCE, GRACE)
        self._entries: dict[int, tuple[Entry, Candidate]] = {}
        self._keys = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_over_limit(self) -> bool:
        """Whether the limit is reached, so that a handshake should be closed before one is added."""
        return self._pending.is_over_limit

    @property
    def is_full(self) -> bool:
        """Whether the hard limit is reached, so that a handshake must be closed before one is added."""
        return self._pending.is_full

    @property
    def room(self) -> int:
        """The number of handshakes that can be added until the hard limit."""
        return self._pending.room

    def add(self, candidate: Candidate, address: Any, now: float) -> Entry:
        """Add a handshake, even above the limits, and return its entry.

        Args:
            candidate: The handshake.
            address: Address of the client, as returned by ``accept``.
            now: The current time.
        """
        entry = Entry(address, next(self._keys))
        self._pending.add(entry.key, entry.origin, now)
        self._entries[entry.key] = entry, candidate
        return entry

    def waiting(self) -> list[Entry]:
        """Return the entries of all handshakes whose request is incomplete, in a new list."""
        return [entry for entry, candidate in self._entries.values() if not isinstance(candidate, LingeringSocket)]

    def replace(self, entry: Entry, candidate: Candidate) -> None:
        """Change the object that handles a pending handshake.

        Args:
            entry: Entry of the handshake; nothing happens if it was removed.
            candidate: The new handler.
        """
        if entry.key in self._entries:
            self._entries[entry.key] = entry, candidate

    def progress(self, entry: Entry, now: float) -> None:
        """Note that input of any size has arrived. The deadline of the handshake limits the total time.

        Args:
            entry: Entry of the handshake; nothing happens if it was removed.
            now: The current time.
        """
        self._pending.progress(entry.key, now)

    def remove(self, entry: Entry) -> Candidate | None:
        """Remove a handshake.

        Args:
            entry: Its entry.

        Returns:
            The handshake, ``None`` if it was removed before.
        """
        self._pending.remove(entry.key)
        _, candidate = self._entries.pop(entry.key, (None, None))
        return candidate

    def first_victim(self) -> Entry | None:
        """Return the entry to close first, whether or not a limit is exceeded; ``None`` if there is none."""
        return self._of(self._pending.first())

    def next_victim(self, now: float) -> Entry | None:
        """Return the entry to close now because the limit is reached; ``None`` if there is none.

        Args:
            now: The current time.
        """
        return self._of(self._pending.next_victim(now, self._has_unread))

    def next_victim_in(self, now: float) -> float | None:
        """Return in how many seconds :meth:`next_victim` may return an entry; ``None`` within the limit.

        Args:
            now: The current time.
        """
        return self._pending.next_victim_in(now)

    def delay(self, now: float) -> float:
        """Return in how many seconds a handshake may be closed for a caller that needs its resources; 0 for now.

        Args:
            now: The current time.
        """
        return self._pending.delay(now, self._has_unread)

    def eviction_log(self, entry: Entry) -> tuple[str, int, str, int]:
        """Return the log message for a closed handshake: a format string and its arguments.

        Args:
            entry: Its entry, not removed yet.
        """
        text = "closed a client whose opening handshake did not go on, for others (max_pending=%d): %s, one of %d"
        return text, self._limit, host_of(entry.address), self._pending.companions(entry.key)

    def _of(self, key: int | None) -> Entry | None:
        return None if key is None or key not in self._entries else self._entries[key][0]

    def _has_unread(self, key: int) -> bool:
        return key in self._entries and self._entries[key][1].has_unread()


def host_of(address: Any) -> str:
    """Return an address for logs, without its port.

    Args:
        address: Address as returned by ``accept``.
    """
    return str(address[0]) if isinstance(address, tuple) else "a Unix socket"


def origin_of(address: Any) -> str | bytes:
    """Return the key by which the handshakes of one client are counted together.

    Args:
        address: Address as returned by ``accept``. Of an IPv6 address, the first 64 bits count, because one customer
            usually has all of them. All clients of a Unix socket count as one.
    """
    if not isinstance(address, tuple):
        return ""
    host = str(address[0])
    if ":" not in host:
        return host
    from ipaddress import IPv6Address

    try:
        number = IPv6Address(host)
    except ValueError:
        return host
    # An IPv6 socket also accepts IPv4 clients, with mapped addresses (RFC 4291, section 2.5.5.2).
    return str(number.ipv4_mapped) if number.ipv4_mapped is not None else number.packed[:8]
