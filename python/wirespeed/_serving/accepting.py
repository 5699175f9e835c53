"""What keeps a server from accepting, for how long, and what is said of it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from .._native import accept
from .._net.addresses import is_socket_replaced
from .._net.binding import BROKEN, EXHAUSTED, LOST, LOST_IN_A_ROW, RETRY_DELAY
from .handshake_limiter import HandshakeLimiterBase

__all__ = ["Accept", "AcceptErrors", "accepting"]

_INTERNET = (socket.AF_INET, socket.AF_INET6)

# Sets no more than what is there already.
_TYPE = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)


Accept = Callable[[], "tuple[socket.socket, Any] | None"]
"""Accepts a connection that waits at one listening socket."""


def accepting(listening: socket.socket) -> Accept:
    """Return what accepts a connection that waits, without blocking.

    It returns its non-blocking socket and the address it came from, or ``None`` if none waits, and raises what
    ``listening.accept`` raises otherwise.

    Args:
        listening: A listening non-blocking socket.
    """
    family, proto = int(listening.family), listening.proto

    def natively() -> tuple[socket.socket, Any] | None:
        # What `listening.accept` does, but for an exception where none waits, a call to have it not block, and the
        # enumerations of family and type.
        accepted = accept(listening.fileno())
        if accepted is None:
            return None
        descriptor, address = accepted
        return socket.socket(family, _TYPE, proto, fileno=descriptor), address

    def by_python() -> tuple[socket.socket, Any] | None:
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError):
            return None
        sock.setblocking(False)
        return sock, address

    # Not for a class of the application that accepts in its own way, nor for the class of gevent, whose objects wait
    # although the descriptor does not block.
    usual = family in _INTERNET and type(listening).accept is socket.socket.accept and not is_socket_replaced()
    return natively if usual and _TYPE != socket.SOCK_STREAM else by_python


class AcceptErrors:
    """The errors of ``accept``.

    Args:
        limiter: Logs them, and closes a client that waits where the system is out of something.

    Attributes:
        lost: How many connections were lost since one was accepted; whoever accepts one sets it to 0.
    """

    def __init__(self, limiter: HandshakeLimiterBase) -> None:
        self.lost = 0
        self._limiter = limiter

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
            self._limiter.count(exc.errno, logging.INFO, text, exc.strerror)
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
        self._limiter.count((problem,), logging.ERROR, "cannot accept connections for now: %s", problem)
        delay = self._limiter.evict_one() if is_exhausted else None
        return RETRY_DELAY if delay is None else min(delay, RETRY_DELAY)
