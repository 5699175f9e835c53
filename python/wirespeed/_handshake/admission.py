"""Who goes when more clients are in the opening handshake than there may be.

Whoever comes takes the place of a client that lets the server wait: of the address that has most of them, the one that
has sent nothing for longest. So a flood of half-open clients drives out itself, and others are served meanwhile. Nobody
goes who has had no time to speak, so that a burst of clients that mean well is served whole: for a short time there may
be more of them.

The rule is native, and that of the engine too; there is no socket and no clock in it: times are arguments, and what is
admitted says what it is. Servers of every kind call it, with a lock of their own where there are threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol

from .._native import HandshakeLimiter

__all__ = ["BURST", "GRACE", "PATIENCE", "Admission", "Candidate", "Entry", "LingeringSocket", "host_of", "origin_of"]

PATIENCE = HandshakeLimiter.PATIENCE
"""Seconds that a client may be silent although there are more than there may be."""

GRACE = HandshakeLimiter.GRACE
"""The same when there are far too many, or no more descriptors."""

BURST = HandshakeLimiter.BURST
"""How many times more than there may be is far too many."""


class Candidate(Protocol):
    """What is admitted, which is asked when its turn has come to go."""

    def has_unread(self) -> bool:
        """Return whether it has sent what nobody has read yet: then the server is late, and not the client."""

    def drop(self) -> None:
        """Close it at once. It is admitted no more."""


class LingeringSocket:
    """A client that was refused, and may read why.

    Args:
        abort: Ends its connection at once.
    """

    __slots__ = ("_abort",)

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort

    def has_unread(self) -> bool:
        """Return False: nobody waits for what it still sends."""
        return False

    def drop(self) -> None:
        """Close it at once."""
        self._abort()


class Entry:
    """A place, which a client has from the time it was accepted until its request is complete.

    It does not know who has it, who may refer to it: no cycle, which would live on after a flood.

    Attributes:
        address: Where it came from, as ``accept`` returned it.
        origin: What the address counts for.
        key: A number of its own.
    """

    __slots__ = ("address", "key", "origin")

    def __init__(self, address: Any, key: int) -> None:
        self.address = address
        self.origin = origin_of(address)
        self.key = key


class Admission:
    """The clients that are in the opening handshake, as far as it waits for them.

    Each method takes a time that grows at most with the logarithm of their number.

    Args:
        limit: How many there may be.
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
        """Whether there are as many as there may be, so that one more should not come before one has gone."""
        return self._pending.is_over_limit

    @property
    def is_full(self) -> bool:
        """Whether there are far too many, so that one more must not come before one has gone."""
        return self._pending.is_full

    @property
    def room(self) -> int:
        """How many more there may be until there are far too many."""
        return self._pending.room

    def add(self, candidate: Candidate, address: Any, now: float) -> Entry:
        """Admit somebody, full or not, and return the place.

        Args:
            candidate: Who it is.
            address: What ``accept`` returned.
            now: Time at which it came.
        """
        entry = Entry(address, next(self._keys))
        self._pending.add(entry.key, entry.origin, now)
        self._entries[entry.key] = entry, candidate
        return entry

    def waiting(self) -> list[Entry]:
        """Return the places of all whose request is waited for, in a new list."""
        return [entry for entry, candidate in self._entries.values() if not isinstance(candidate, LingeringSocket)]

    def replace(self, entry: Entry, candidate: Candidate) -> None:
        """Note who goes on with a place.

        Args:
            entry: The place; nothing happens if it was given back.
            candidate: Who has it now.
        """
        if entry.key in self._entries:
            self._entries[entry.key] = entry, candidate

    def progress(self, entry: Entry, now: float) -> None:
        """Note that something came. It does not matter how much; how long it may go on is the deadline's business.

        Args:
            entry: From whom; nothing happens if it is admitted no more.
            now: Time at which it came.
        """
        self._pending.progress(entry.key, now)

    def remove(self, entry: Entry) -> Candidate | None:
        """Give a place back.

        Args:
            entry: The place.

        Returns:
            Who had it, ``None`` if it was given back before.
        """
        self._pending.remove(entry.key)
        _, candidate = self._entries.pop(entry.key, (None, None))
        return candidate

    def first_to_go(self) -> Entry | None:
        """Return who would have to give a place now, ``None`` if there is nobody."""
        return self._of(self._pending.first())

    def next_victim(self, now: float) -> Entry | None:
        """Return who has to go now, as there are more than there may be, or one more comes; ``None`` for nobody.

        Args:
            now: The present time.
        """
        return self._of(self._pending.next_victim(now, self._has_unread))

    def next_victim_in(self, now: float) -> float | None:
        """Return after how many seconds :meth:`overdue` may have an answer, if there are too many; else ``None``.

        Args:
            now: The present time.
        """
        return self._pending.next_victim_in(now)

    def delay(self, now: float) -> float:
        """Return after how many seconds somebody can be made to go for whoever cannot wait; 0 for at once.

        Args:
            now: The present time.
        """
        return self._pending.delay(now, self._has_unread)

    def farewell(self, entry: Entry) -> tuple[str, int, str, int]:
        """Return what to log of one who has to go: a text, and the arguments for it.

        Args:
            entry: Its place, which it still has.
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
        address: What ``accept`` returned.
    """
    return str(address[0]) if isinstance(address, tuple) else "a Unix socket"


def origin_of(address: Any) -> str | bytes:
    """Return what an address counts for: one customer of a network, as far as one can tell.

    Args:
        address: What ``accept`` returned. Of an IPv6 address the first 64 bits count: a customer has them all. All
            clients of a Unix socket are one.
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
    # A socket of IPv6 accepts clients of IPv4 too: RFC 4291, section 2.5.5.2.
    return str(number.ipv4_mapped) if number.ipv4_mapped is not None else number.packed[:8]
