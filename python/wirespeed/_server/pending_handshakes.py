"""Accepted sockets whose request has not arrived yet, without a task, a thread or a timer for each.

It does not wait: the subclasses report when a socket is readable and when a timeout is over.
"""

from __future__ import annotations

import collections
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.pending_handshake import PendingHandshake
from .._native import ServerOpening
from .handshake_limiter import HandshakeLimiterBase
from .negotiate import READ_SIZE

__all__ = ["PendingHandshakesBase"]


class PendingHandshakesBase:
    """The sockets of a server that wait for their request.

    Args:
        clock: Returns the current time.
        open_timeout: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Counts the pending handshakes.
        make_opening: Creates the parser of a request; ``None`` with TLS, where the first record is awaited instead.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        open_timeout: float | None,
        limiter: HandshakeLimiterBase,
        make_opening: Callable[[], ServerOpening] | None,
    ) -> None:
        self._clock = clock
        self._open_timeout = open_timeout
        self._limiter = limiter
        self._make_opening = make_opening
        # In the order of their deadlines. An OrderedDict, because the first item is looked up often.
        self._waiting: collections.OrderedDict[PendingHandshake, None] = collections.OrderedDict()

    def _admit(self, sock: socket_module.socket, address: Any) -> PendingHandshake | None:
        """Add a socket; return it if it need not wait, because its request or an error is there already."""
        deadline = None if self._open_timeout is None else self._clock() + self._open_timeout
        pending = PendingHandshake(sock, address, deadline, self._dropped)
        try:
            if not pending.receive(sock.recv(READ_SIZE), self._make_opening):
                return pending
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as exc:
            pending.is_lost = isinstance(exc, ConnectionError)
            return pending  # the next read raises it again
        pending.entry = self._limiter.enter(pending, address)
        self._waiting[pending] = None
        self._watch(pending)
        return None

    def _receive(self, pending: PendingHandshake) -> bool:
        """Receive from a socket; return whether it need not wait any more, and is removed from this object."""
        if pending not in self._waiting:
            return False  # dropped in this iteration, after it was reported as readable
        try:
            if pending.receive(pending.sock.recv(READ_SIZE), self._make_opening):
                if pending.entry is not None:
                    self._limiter.progress(pending.entry)
                return False
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as exc:
            pending.is_lost = isinstance(exc, ConnectionError)  # the next read raises it again
        self._forget(pending)
        return True

    def _deadline(self) -> float | None:
        """Return the next deadline, ``None`` for never."""
        return next(iter(self._waiting)).deadline if self._waiting else None

    def _take(self, until: float | None = None) -> PendingHandshake | None:
        """Remove and return the first socket, or ``None``. With ``until``, only if its deadline is not later."""
        if not self._waiting:
            return None
        pending = next(iter(self._waiting))
        if until is not None and (pending.deadline is None or pending.deadline > until):
            return None
        self._forget(pending)
        return pending

    def _dropped(self, pending: PendingHandshake) -> None:
        self._forget(pending)
        pending.sock.close()

    def _watch(self, pending: PendingHandshake) -> None:
        """Arrange that :meth:`_receive` is called when the socket is readable."""
        raise NotImplementedError

    def _forget(self, pending: PendingHandshake) -> None:
        del self._waiting[pending]
