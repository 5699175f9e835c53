"""Keepalive as seen by a peer: the time of each ping, compared with the configured interval."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from .frames import CLOSE, PING, PONG, frame, text
from .scripted import Wire

__all__ = ["ENOUGH", "check_pace", "pace", "time_pings"]

# The message that the peer sends when it has seen enough.
ENOUGH = "enough"

# Two of these pings have the right distance, unless the interval is wrong. On a busy machine it takes more pings.
_LEAST = 4
_PATIENCE = 15.0

# The maximum lateness of a ping. Half of an interval is too much.
_LATE = 1.35


def time_pings(wire: Wire, interval: float, start: float, *, mask: bytes | None = None) -> list[tuple[float, bytes]]:
    """Answers pings until they show the interval: returns the seconds since a start, and the payload, of each.

    Args:
        wire: The end of the peer, after its opening handshake.
        interval: The expected one.
        start: The time, by the monotonic clock, before the other end was open.
        mask: Of the pongs, if the peer is a client.
    """
    pings: list[tuple[float, bytes]] = []
    while len(pings) < _LEAST or (_shortest(pings) > interval * _LATE and pings[-1][0] < _PATIENCE):
        received = wire.read_frame()
        assert received.opcode == PING, received
        pings.append((time.monotonic() - start, received.payload))
        wire.send(frame(PONG, received.payload, mask=mask))
    return pings


def _shortest(pings: list[tuple[float, bytes]]) -> float:
    return min(after - before for (before, _), (after, _) in itertools.pairwise(pings))


def pace(interval: float, seen: threading.Event | None = None) -> Callable[[Wire], list[tuple[float, bytes]]]:
    """A script for a server that returns the result of ``time_pings``. It sends a text and sets an event after that."""

    def script(wire: Wire) -> list[tuple[float, bytes]]:
        wire.read_request()
        start = time.monotonic()
        wire.send(wire.accept_bytes())
        pings = time_pings(wire, interval, start)
        wire.send(text(ENOUGH))
        if seen is not None:
            seen.set()
        while (received := wire.read_frame()).opcode != CLOSE:
            assert received.opcode == PING
        wire.send(frame(CLOSE, received.payload))
        return pings

    return script


def check_pace(pings: list[tuple[float, bytes]], interval: float) -> None:
    """Checks that no ping is early, that two of them have the right distance, and that each has its own payload.

    A peer that reads late sees later pings too close together, so the time since the start counts.
    """
    for number, (seconds, _) in enumerate(pings, 1):
        assert seconds >= number * interval * 0.9, f"ping {number} came after {seconds:.3f} s"
    assert _shortest(pings) <= interval * _LATE
    assert len({payload for _, payload in pings}) == len(pings)
