"""Limits the pending opening handshakes of a server, closes some above the limit, and throttles their log.

The rules are in :mod:`wirespeed._handshake.eviction`. Timers and locks are in the subclasses for each API.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .._handshake.eviction import Candidate, Entry, EvictionQueue, host_of, origin_of
from .._handshake.pending_handshake import PendingHandshake
from ..typing import LoggerLike
from .log import LogThrottle

__all__ = ["HandshakeLimiterBase"]

# Handshakes to close in one call: 1 or 2 ms, so that the server can do other work.
_TRIMMED_AT_ONCE = 64

_TRIM_INTERVAL = 0.005


class HandshakeLimiterBase:
    """Limits the opening handshakes that wait for a client.

    1. :meth:`enter` adds a handshake, :meth:`progress` notes input from the client, :meth:`replace` passes it on.
    2. :meth:`trim` closes handshakes above the limit; :meth:`evict_one` frees resources.
    3. :meth:`throttled_log` and :meth:`count` log; :meth:`log_due` writes lines that are due.

    Args:
        clock: Returns the current time.
        limit: Maximum number of pending handshakes.
        logger: Logger for closed handshakes.
    """

    # Seconds that pending handshakes may take once the server closes, if there is no `open_timeout`.
    closing_timeout = 10.0

    # Seconds until a handshake that runs in a task or thread has freed its descriptor after it was dropped.
    _eviction_delay = 0.0

    def __init__(self, clock: Callable[[], float], limit: int, logger: LoggerLike) -> None:
        self._clock = clock
        self._queue = EvictionQueue(limit)
        self._throttle = LogThrottle(logger)
        # When `log_due` is called next.
        self._due: float | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def room(self) -> int:
        """The number of handshakes that can be added until the hard limit."""
        return self._queue.room

    def delay(self) -> float:
        """Return for how many seconds no handshake can be added; 0 if one can be added now."""
        return self._queue.delay(self._clock()) if self._queue.is_full else 0.0

    def enter(self, candidate: Candidate, address: Any) -> Entry:
        """Add a handshake; close others if the limit is exceeded.

        Args:
            candidate: The new handshake.
            address: Address of the client.
        """
        now = self._clock()
        if not self._queue.is_over_limit:
            return self._queue.add(candidate, address, now)
        # Close up to two, so that their number shrinks while the limit is exceeded.
        for _ in range(2):
            if self._queue.is_over_limit and (entry := self._queue.next_victim(now)) is not None:
                self._drop(entry)
        if self._queue.is_full and (entry := self._queue.first_victim()) is not None:
            self._drop(entry)
        entry = self._queue.add(candidate, address, now)
        self._trim_later()
        return entry

    def trim(self) -> float | None:
        """Close some handshakes above the limit; return in how many seconds to call again, ``None`` for never."""
        now = self._clock()
        for _ in range(_TRIMMED_AT_ONCE):
            if self._queue.next_victim_in(now) is None or (entry := self._queue.next_victim(now)) is None:
                break
            self._drop(entry)
        return self._trim_in(now)

    def replace(self, entry: Entry, candidate: Candidate) -> None:
        """Change the object that handles a pending handshake.

        Args:
            entry: Entry of the handshake; nothing happens if it was removed.
            candidate: The new handler.
        """
        self._queue.replace(entry, candidate)

    def progress(self, entry: Entry) -> None:
        """Note that input came from a client.

        Args:
            entry: Entry of the handshake.
        """
        self._queue.progress(entry, self._clock())

    def evict_one(self) -> float | None:
        """Close the next victim, to free its descriptor and thread.

        Returns:
            Seconds until that is possible or has an effect; 0 if it is done, ``None`` without pending handshakes.
        """
        if not len(self._queue):
            return None
        delay = self._queue.delay(self._clock())
        if not delay and (entry := self._queue.first_victim()) is not None:
            # Handshakes in a task or a thread are closed by that task or thread.
            return 0.0 if isinstance(self._drop(entry), PendingHandshake) else self._eviction_delay
        return delay

    def count(self, kind: object, level: int, text: str, *arguments: Any) -> None:
        """Count an event to be logged later: see :meth:`wirespeed._server.log.LogThrottle.add`.

        Args:
            kind: Key of the series.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        self._throttle.add(kind, self._clock(), level, text, *arguments)
        self._reschedule_log()

    def throttled_log(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log or count an event that a client has caused: see :meth:`LogThrottle.add_from_peer`.

        Args:
            address: Address of the client.
            kind: Kind of event.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        self._throttle.add_from_peer(origin_of(address), kind, self._clock(), level, text, *arguments)
        self._reschedule_log()

    def throttled_log_start(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> bool:
        """Count an event like :meth:`throttled_log`; return whether it is the first, which the caller must log.

        Args:
            address: Address of the client.
            kind: Kind of event.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        begins = self._throttle.is_first(origin_of(address), kind, self._clock(), level, text, *arguments)
        self._reschedule_log()
        return begins

    def log_due(self) -> float | None:
        """Log all lines that are due; return in how many seconds to call again, ``None`` for never."""
        now = self._clock()
        self._throttle.log_due(now)
        self._due = self._throttle.due
        return None if self._due is None else max(0.001, self._due - now)

    def close_all(self) -> None:
        """Close all pending handshakes, because the server closes and has waited long enough for them."""
        for entry in self._queue.waiting():
            text = "closed a client that had not sent its request when the server closed: %s"
            self.count("closing", logging.WARNING, text, host_of(entry.address))
            self._close(entry)

    def finish(self) -> None:
        """Log the pending counts."""
        self._throttle.finish()
        self._due = None

    def _drop(self, entry: Entry) -> Candidate | None:
        self.count(self, logging.WARNING, *self._queue.eviction_log(entry))
        return self._close(entry)

    def _close(self, entry: Entry) -> Candidate | None:
        candidate = self._queue.remove(entry)
        if candidate is not None:
            candidate.drop()
        return candidate

    def _reschedule_log(self) -> None:
        due = self._throttle.due
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._schedule_log(due)

    def _trim_in(self, now: float) -> float | None:
        left = self._queue.next_victim_in(now)
        return None if left is None else max(left, _TRIM_INTERVAL)

    def _trim_later(self) -> None:
        """Arrange that :meth:`trim` is called, if the limit is exceeded."""

    def _schedule_log(self, due: float) -> None:
        """Arrange that :meth:`log_due` is called at a time."""
        raise NotImplementedError
