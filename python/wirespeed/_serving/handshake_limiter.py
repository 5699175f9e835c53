"""The clients of a server that are in the opening handshake: places for them, who has to give one back, and the log.

The rules are those of :mod:`wirespeed._handshake.admission`. It waits for nothing: who has a timer, or a lock, is the
server's kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .._handshake.admission import Admission, Candidate, Entry, host_of, origin_of
from .._handshake.pending_handshake import PendingHandshake
from ..typing import LoggerLike
from .log_throttle import LogThrottle

__all__ = ["HandshakeLimiterBase"]

# A millisecond or two of closing; there are others to be served.
_TRIMMED_AT_ONCE = 64

_TRIM_INTERVAL = 0.005


class HandshakeLimiterBase:
    """Who is in the opening handshake, as far as it waits for the client.

    Args:
        clock: Returns the present time.
        limit: How many there may be.
        logger: For those that had to go.
    """

    # Seconds that clients have to send their request once the server closes, where `open_timeout` bounds nothing.
    closing_patience = 10.0

    # Seconds until somebody has given its descriptor back who was told to go, and is served by somebody else.
    _relief = 0.0

    def __init__(self, clock: Callable[[], float], limit: int, logger: LoggerLike) -> None:
        self._clock = clock
        self._admission = Admission(limit)
        self._tally = LogThrottle(logger)
        # When `tell` is called next, as far as anybody knows.
        self._due: float | None = None

    def __len__(self) -> int:
        return len(self._admission)

    @property
    def room(self) -> int:
        """How many more there may be until there are far too many."""
        return self._admission.room

    def delay(self) -> float:
        """Return for how many seconds nobody can be admitted; 0 for not at all."""
        return self._admission.delay(self._clock()) if self._admission.is_full else 0.0

    def enter(self, candidate: Candidate, address: Any) -> Entry:
        """Give somebody a place; if there was none, others go.

        Args:
            candidate: Who comes.
            address: Its address.
        """
        now = self._clock()
        if not self._admission.is_over_limit:
            return self._admission.add(candidate, address, now)
        # Two, so that there are fewer in the end, if there are too many.
        for _ in range(2):
            if self._admission.is_over_limit and (entry := self._admission.next_victim(now)) is not None:
                self._drop(entry)
        if self._admission.is_full and (entry := self._admission.first_to_go()) is not None:
            self._drop(entry)
        entry = self._admission.add(candidate, address, now)
        self._trim_later()
        return entry

    def trim(self) -> float | None:
        """Close some of those that are too many; return in how many seconds to do so again, ``None`` for never."""
        now = self._clock()
        for _ in range(_TRIMMED_AT_ONCE):
            if self._admission.next_victim_in(now) is None or (entry := self._admission.next_victim(now)) is None:
                break
            self._drop(entry)
        return self._trim_in(now)

    def replace(self, entry: Entry, candidate: Candidate) -> None:
        """Note who goes on with a place.

        Args:
            entry: The place; nothing happens if it was given back.
            candidate: Who has it now.
        """
        self._admission.replace(entry, candidate)

    def progress(self, entry: Entry) -> None:
        """Note that something came from a client.

        Args:
            entry: Its place.
        """
        self._admission.progress(entry, self._clock())

    def evict_one(self) -> float | None:
        """Close who is first to go, for the sake of its descriptor and its thread.

        Returns:
            Seconds until that is possible, or until it has an effect; 0 if it was done, ``None`` if there is nobody.
        """
        if not len(self._admission):
            return None
        delay = self._admission.delay(self._clock())
        if not delay and (entry := self._admission.first_to_go()) is not None:
            # Others are closed by those that serve them.
            return 0.0 if isinstance(self._drop(entry), PendingHandshake) else self._relief
        return delay

    def count(self, kind: object, level: int, text: str, *arguments: Any) -> None:
        """Log what may happen often.

        Args:
            kind: As for :meth:`wirespeed._serving.log_throttle.LogThrottle.add`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        self._tally.add(kind, self._clock(), level, text, *arguments)
        self._look()

    def throttled_log(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log what a client can cause as often as it likes.

        Args:
            address: Its address.
            kind: As for :meth:`wirespeed._serving.log_throttle.LogThrottle.add_of`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        self._tally.add_of(origin_of(address), kind, self._clock(), level, text, *arguments)
        self._look()

    def throttled_log_start(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> bool:
        """Count as :meth:`throttled_log` does; return whether it is a first one, which the caller has to log.

        Args:
            address: Its address.
            kind: As for :meth:`wirespeed._serving.log_throttle.LogThrottle.begins`, as are the others.
            level: Of the line in the log.
            text: The line.
            *arguments: What it says of this one.
        """
        begins = self._tally.begins(origin_of(address), kind, self._clock(), level, text, *arguments)
        self._look()
        return begins

    def tell(self) -> float | None:
        """Log what is due; return in how many seconds there is more, ``None`` for never."""
        now = self._clock()
        self._tally.tell(now)
        self._due = self._tally.due
        return None if self._due is None else max(0.001, self._due - now)

    def close_all(self) -> None:
        """Close all who have not sent their request: the server closes, and has waited for them."""
        for entry in self._admission.waiting():
            text = "closed a client that had not sent its request when the server closed: %s"
            self.count("closing", logging.WARNING, text, host_of(entry.address))
            self._close(entry)

    def finish(self) -> None:
        """Log what was not yet, and nothing more."""
        self._tally.finish()
        self._due = None

    def _drop(self, entry: Entry) -> Candidate | None:
        self.count(self, logging.WARNING, *self._admission.farewell(entry))
        return self._close(entry)

    def _close(self, entry: Entry) -> Candidate | None:
        candidate = self._admission.remove(entry)
        if candidate is not None:
            candidate.drop()
        return candidate

    def _look(self) -> None:
        due = self._tally.due
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._tell_at(due)

    def _trim_in(self, now: float) -> float | None:
        left = self._admission.next_victim_in(now)
        return None if left is None else max(left, _TRIM_INTERVAL)

    def _trim_later(self) -> None:
        """See to it that :meth:`trim` is called, if there are too many."""

    def _tell_at(self, due: float) -> None:
        """See to it that :meth:`tell` is called at a time."""
        raise NotImplementedError
