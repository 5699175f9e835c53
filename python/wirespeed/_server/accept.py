"""Accepting sockets: the accept function of a listening socket, and how long to pause after its errors."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from .._native import accept
from .._net.addresses import is_socket_replaced
from .._net.binding import BROKEN, EXHAUSTED, LOST, MAX_LOST_IN_A_ROW, RETRY_DELAY
from .handshake_limiter import HandshakeLimiterBase

__all__ = ["Accept", "AcceptErrors", "accepting"]

_INTERNET = (socket.AF_INET, socket.AF_INET6)

# The flags that an accepted socket already has: setting them again changes nothing.
_TYPE = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)


Accept = Callable[[], "tuple[socket.socket, Any] | None"]
"""Accepts one waiting connection of a listening socket."""


def accepting(listening: socket.socket) -> Accept:
    """Return a function that accepts one waiting connection without blocking.

    It returns a non-blocking socket and the address of its peer, or ``None`` if no connection is waiting. It raises
    the other exceptions of ``listening.accept``.

    Args:
        listening: A listening non-blocking socket.
    """
    family, proto = int(listening.family), listening.proto

    def natively() -> tuple[socket.socket, Any] | None:
        # Like `listening.accept`, but without the exception for an empty queue, without the call that sets
        # non-blocking mode, and without converting family and type to enumerations.
        accepted = accept(listening.fileno())
        if accepted is None:
            return None
        descriptor, address = accepted
        return socket.socket(family, _TYPE, proto, fileno=descriptor), address

    def through_socket() -> tuple[socket.socket, Any] | None:
        try:
            sock, address = listening.accept()
        except (BlockingIOError, InterruptedError):
            return None
        sock.setblocking(False)
        return sock, address

    # Use `accept` of the object if it is overridden, or if gevent has replaced the class: its objects wait although
    # the descriptor is non-blocking.
    usual = family in _INTERNET and type(listening).accept is socket.socket.accept and not is_socket_replaced()
    return natively if usual and _TYPE != socket.SOCK_STREAM else through_socket


class AcceptErrors:
    """Decides what to do after errors of ``accept``.

    Args:
        limiter: Logs the errors, and closes a pending handshake when the system has run out of resources.

    Attributes:
        lost: Number of connections lost since the last one was accepted. The caller sets it to 0 after each success.
    """

    def __init__(self, limiter: HandshakeLimiterBase) -> None:
        self.lost = 0
        self._limiter = limiter

    def delay_after(self, exc: OSError, problem: str) -> float | None:
        """Return for how many seconds to pause; ``None`` to stop accepting on this socket.

        Args:
            exc: The exception of ``accept``.
            problem: Text for the log.
        """
        if exc.errno in BROKEN:
            return None
        if exc.errno in LOST and self.lost < MAX_LOST_IN_A_ROW:
            self.lost += 1
            text = "a connection was lost before it was accepted: %s"
            self._limiter.count(exc.errno, logging.INFO, text, exc.strerror)
            return 0.0
        self.lost = 0
        return self.pause(problem, exc.errno in EXHAUSTED)

    def pause(self, problem: str, is_exhausted: bool) -> float:
        """Return for how many seconds to pause after the system has refused a resource, and log it.

        Args:
            problem: Text for the log.
            is_exhausted: Whether it has run out of descriptors or memory. Then a pending handshake is closed, which
                frees some.
        """
        self._limiter.count((problem,), logging.ERROR, "cannot accept connections for now: %s", problem)
        delay = self._limiter.evict_one() if is_exhausted else None
        return RETRY_DELAY if delay is None else min(delay, RETRY_DELAY)
