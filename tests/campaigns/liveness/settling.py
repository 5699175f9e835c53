"""Detects calls that wait forever: events that must happen by themselves once the peers read, write and answer
everything.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import Protocol

from .plan import RECEIVING, Step
from .record import Call, Link, Record

# The total time limit of waits that may each take the full time.
_TIMES = 5


class Acting(Protocol):
    """The properties of an actor that matter here."""

    number: int
    call: Call | None
    steps: collections.deque[Step]


class Deadline:
    """The deadline of a required event: extended while bytes of a peer move, however slowly.

    A kernel with little room takes 2 KB from the other one in 0.2 s: room of less than a segment is announced by a
    timer.

    Args:
        record: The record so far.
        patience: Maximum seconds without progress.
    """

    def __init__(self, record: Record, patience: float) -> None:
        self._record = record
        self._patience = patience
        self._begun = self._went_on = time.monotonic()
        self._backlog = self._measure()

    def look(self) -> bool:
        """Updates the deadline after progress; returns whether it has passed."""
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
    """Returns the events that must still happen, as texts.

    Args:
        record: The record so far.
        actors: The actors.
        receiving: Whether an actor receives all messages of the peers. If not, only sending must make progress.
        driven: Whether a connection makes progress by itself, as on an event loop, or only within calls.
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
    """Returns whether a running call has to end by itself.

    Args:
        call: A running call.
        link: Its connection.
        receiving: As for :func:`owing`.
    """
    if call.verb in RECEIVING:
        # A receiver may wait while there is nothing to receive.
        return receiving and (link.state != "OPEN" or link.outstanding > 0 or call.verb == "recv_nowait")
    if call.verb in ("close", "wait_closed"):
        return receiving and (link.state != "OPEN" or call.verb == "close")
    if call.verb == "ping":
        # The pong may lie behind messages that are not received.
        return receiving
    # A reset ends waiting sends, whether or not a call takes the messages that came before it.
    return receiving or link.state == "OPEN" or link.peer.ended == "left"
