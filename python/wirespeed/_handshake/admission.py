"""Who goes when more clients are in the opening handshake than there may be.

Whoever comes takes the place of a client that lets the server wait: of the address that has most of them, the one that
has sent nothing for longest. So a flood of half-open clients drives out itself, and others are served meanwhile. Nobody
goes who has had no time to speak, so that a burst of clients that mean well is served whole: for a short time there may
be more of them.

There is no socket and no clock in here: times are arguments, and what is admitted says what it is. Servers of every
kind call it, with a lock of their own where there are threads.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Hashable
from typing import Any, Protocol

__all__ = ["BURST", "GRACE", "PATIENCE", "Admission", "Candidate", "Entry", "Lingering", "host_of", "origin_of"]

PATIENCE = 1.0
"""Seconds that a client may be silent although there are more than there may be. Thousands that come at the same moment
and mean well, after a restart or behind one proxy, have all spoken long before, even over slow networks with TLS; those
that do not, cost a descriptor and some kilobytes each for this time.
"""

GRACE = 0.02
"""The same when there are far too many, or no more descriptors. What they have sent may be on its way. It delays those
that come, and more than ``BURST * max_pending`` in this time are many times what a server in Python accepts.
"""

BURST = 16
"""How many times more than there may be is far too many. With the default, that is a flood, or a burst of 16,384."""


class Candidate(Protocol):
    """What is admitted, which is asked when its turn has come to go."""

    def has_unread(self) -> bool:
        """Return whether it has sent what nobody has read yet: then the server is late, and not the client."""

    def drop(self) -> None:
        """Close it at once. It is admitted no more."""


class Lingering:
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

    Attributes:
        candidate: Who has it. It may be replaced by who goes on.
        address: Where it came from, as ``accept`` returned it.
        origin: What the address counts for.
        since: When something came from it last.
    """

    __slots__ = ("address", "candidate", "order", "origin", "since")

    def __init__(self, candidate: Candidate, address: Any, since: float, order: int) -> None:
        self.candidate = candidate
        self.address = address
        self.origin = origin_of(address)
        self.since = since
        # Of all entries in the order of ``since``: unique, and greater than that of any entry which was
        # silent longer.
        self.order = order


class Admission:
    """The clients that are in the opening handshake, as far as it waits for them.

    Each method takes a time that grows at most with the logarithm of the number of addresses.

    Args:
        limit: How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order = 0
        self._size = 0
        # For each address its entries, the one that was silent longest first. An OrderedDict, because the
        # first of a dict from which many first ones were deleted takes long to find.
        self._origins: dict[Hashable, collections.OrderedDict[Entry, None]] = {}
        # For each address, (-number of entries, order of the first, address): the least is the one who has to
        # give. What is no longer so stays in it until it comes to the top, or until there is more of that
        # than of the rest.
        self._heap: list[tuple[int, int, Hashable]] = []

    def __len__(self) -> int:
        return self._size

    @property
    def is_crowded(self) -> bool:
        """Whether there are as many as there may be, so that one more should not come before one has gone."""
        return self._size >= self._limit

    @property
    def is_full(self) -> bool:
        """Whether there are far too many, so that one more must not come before one has gone."""
        return self._size >= self._limit * BURST

    def add(self, candidate: Candidate, address: Any, now: float) -> Entry:
        """Admit somebody, full or not, and return the place.

        Args:
            candidate: Who it is.
            address: What ``accept`` returned.
            now: Time at which it came.
        """
        self._order += 1
        entry = Entry(candidate, address, now, self._order)
        entries = self._origins.get(entry.origin)
        if entries is None:
            entries = self._origins[entry.origin] = collections.OrderedDict()
        entries[entry] = None
        self._size += 1
        self._changed(entry.origin, entries)
        return entry

    def progress(self, entry: Entry, now: float) -> None:
        """Note that something came. It does not matter how much; how long it may go on is the deadline's business.

        Args:
            entry: From whom; nothing happens if it is admitted no more.
            now: Time at which it came.
        """
        entries = self._origins.get(entry.origin)
        if entries is None or entry not in entries:
            return
        was_first = next(iter(entries)) is entry
        self._order += 1
        entry.order = self._order
        entry.since = now
        entries.move_to_end(entry)
        if was_first:
            self._changed(entry.origin, entries)

    def remove(self, entry: Entry) -> bool:
        """Give a place back.

        Args:
            entry: The place.

        Returns:
            Whether it was there: if not, somebody else has got it.
        """
        entries = self._origins.get(entry.origin)
        if entries is None or entry not in entries:
            return False
        del entries[entry]
        self._size -= 1
        if entries:
            self._changed(entry.origin, entries)
        else:
            del self._origins[entry.origin]
        return True

    def first_to_go(self) -> Entry | None:
        """Return who would have to give a place now, ``None`` if there is nobody."""
        heap = self._heap
        while heap:
            number, order, origin = heap[0]
            entries = self._origins.get(origin)
            if entries is not None and len(entries) == -number:
                entry = next(iter(entries))
                if entry.order == order:
                    return entry
            heapq.heappop(heap)
        return None

    def overdue(self, now: float) -> Entry | None:
        """Return who has to go now, as there are more than there may be, or one more comes; ``None`` for nobody.

        Args:
            now: The present time.
        """
        return None if self._left(PATIENCE, now) else self.first_to_go()

    def overdue_in(self, now: float) -> float | None:
        """Return after how many seconds :meth:`overdue` may have an answer, if there are too many; else ``None``.

        Args:
            now: The present time.
        """
        entry = self.first_to_go() if self._size > self._limit else None
        return None if entry is None else max(0.0, entry.since + PATIENCE - now)

    def delay(self, now: float) -> float:
        """Return after how many seconds somebody can be made to go for whoever cannot wait; 0 for at once.

        Args:
            now: The present time.
        """
        return self._left(GRACE, now)

    def _left(self, patience: float, now: float) -> float:
        """Return for how long the first to go still has time. Whoever has sent what nobody has read has it anew."""
        while (entry := self.first_to_go()) is not None:
            left = entry.since + patience - now
            if left > 0:
                return left
            if not entry.candidate.has_unread():
                return 0.0
            # Each is asked once in that time.
            self.progress(entry, now)
        return patience

    def farewell(self, entry: Entry) -> tuple[str, int, str, int]:
        """Return what to log of one who has to go: a text, and the arguments for it.

        Args:
            entry: Its place, which it still has.
        """
        text = "closed a client whose opening handshake did not go on, for others (max_pending=%d): %s, one of %d"
        return text, self._limit, host_of(entry.address), len(self._origins[entry.origin])

    def _changed(self, origin: Hashable, entries: collections.OrderedDict[Entry, None]) -> None:
        heapq.heappush(self._heap, (-len(entries), next(iter(entries)).order, origin))
        if len(self._heap) > 2 * len(self._origins) + 64:
            self._heap = [(-len(some), next(iter(some)).order, name) for name, some in self._origins.items()]
            heapq.heapify(self._heap)


def host_of(address: Any) -> str:
    """Return an address for logs, without its port.

    Args:
        address: What ``accept`` returned.
    """
    return str(address[0]) if isinstance(address, tuple) else "a Unix socket"


def origin_of(address: Any) -> Hashable:
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
