"""Does anybody wait for ever? What has to happen by itself once the peers read, write and answer everything."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import Protocol

from .plan import RECEIVING, Step
from .record import Call, Link, Record

__all__ = ["Acting", "Deadline", "owed", "owing"]

# In all, of what may take the patience each time.
_TIMES = 5


class Acting(Protocol):
    """An actor, as far as it matters here."""

    number: int
    call: Call | None
    steps: collections.deque[Step]


class Deadline:
    """Until when what has to happen may take: longer while bytes of a peer go on, however slowly.

    A kernel with little room takes 2 KB from the other one in 0.2 s: less room than a segment is told by a timer.

    Args:
        record: What has happened so far.
        patience: Seconds in which nothing may go on.
    """

    def __init__(self, record: Record, patience: float) -> None:
        self._record = record
        self._patience = patience
        self._begun = self._went_on = time.monotonic()
        self._backlog = self._measure()

    def look(self) -> bool:
        """See what has gone on; tell whether it has passed."""
        now = time.monotonic()
        if now - self._went_on <= self._patience:
            return False
        backlog = self._measure()
        if backlog == self._backlog or now - self._begun > _TIMES * self._patience:
            return True
        self._went_on, self._backlog = now, backlog
        return False

    def _measure(self) -> list[int]:
        return [link.peer.backlog for link in self._record.links]


def owing(record: Record, actors: Sequence[Acting], *, receiving: bool, driven: bool = True) -> list[str]:
    """Tell what has to happen yet, in words.

    Args:
        record: What has happened so far.
        actors: Who makes calls.
        receiving: Whether somebody takes everything that the peers have sent. If not, only what is sent has to go on.
        driven: Whether a connection goes on by itself, as on an event loop, or only within calls.
    """
    found = []
    for actor in actors:
        call = actor.call
        if call is not None:
            if owed(call, record.links[call.step.link], receiving=receiving):
                found.append(f"it waits for ever: {call}")
        elif actor.steps:
            found.append(f"actor {actor.number} does not go on")
    for link in record.links:
        state = link.state
        if state != "OPEN":
            if receiving and driven and state != "CLOSED":
                found.append(f"connection {link.index} is {state} for ever")
            continue
        stats = link.ws.stats()
        if stats["send_queue_bytes"]:
            found.append(f"{stats['send_queue_bytes']} bytes are queued for ever, though the peer reads")
        if receiving and link.outstanding > 0:
            found.append(f"{link.outstanding} messages of the peer do not arrive; {stats} {link.refused}")
    return found


def owed(call: Call, link: Link, *, receiving: bool) -> bool:
    """Tell whether a call that runs has to end by itself.

    Args:
        call: A call that is running.
        link: Its connection.
        receiving: As for :func:`owing`.
    """
    if call.verb in RECEIVING:
        # Who receives may wait while there is nothing to receive.
        return receiving and (link.state != "OPEN" or link.outstanding > 0 or call.verb == "recv_nowait")
    if call.verb in ("close", "wait_closed"):
        return receiving and (link.state != "OPEN" or call.verb == "close")
    if call.verb == "ping":
        # The pong may lie behind messages that nobody takes.
        return receiving
    # A reset ends what waits to send, whether or not a call takes the messages that came before it.
    return receiving or link.state == "OPEN" or link.peer.ended == "left"
