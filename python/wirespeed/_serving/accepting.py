"""What keeps a server from accepting, for how long, and what is said of it."""

from __future__ import annotations

import logging

from .._net.binding import BROKEN, EXHAUSTED, LOST, LOST_IN_A_ROW, RETRY_DELAY
from .gate import GateBase

__all__ = ["AcceptErrors"]


class AcceptErrors:
    """The errors of ``accept``.

    Args:
        gate: Logs them, and closes a client that waits where the system is out of something.

    Attributes:
        lost: How many connections were lost since one was accepted; whoever accepts one sets it to 0.
    """

    def __init__(self, gate: GateBase) -> None:
        self.lost = 0
        self._gate = gate

    def after(self, exc: OSError, problem: str) -> float | None:
        """Return for how many seconds not to accept, ``None`` for never more from this socket.

        Args:
            exc: What ``accept`` has raised.
            problem: What to say of it.
        """
        if exc.errno in BROKEN:
            return None
        if exc.errno in LOST and self.lost < LOST_IN_A_ROW:
            self.lost += 1
            text = "a connection was lost before it was accepted: %s"
            self._gate.count(exc.errno, logging.INFO, text, exc.strerror)
            return 0.0
        self.lost = 0
        return self.rest(problem, exc.errno in EXHAUSTED)

    def rest(self, problem: str, is_exhausted: bool) -> float:
        """Return for how many seconds not to accept, after the system has refused something.

        Args:
            problem: What to say of it.
            is_exhausted: Whether it is out of descriptors or memory, of which whoever waits in the opening handshake
                has some.
        """
        self._gate.count((problem,), logging.ERROR, "cannot accept connections for now: %s", problem)
        delay = self._gate.relieve() if is_exhausted else None
        return RETRY_DELAY if delay is None else min(delay, RETRY_DELAY)
