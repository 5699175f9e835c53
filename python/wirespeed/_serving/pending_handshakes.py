"""Accepted sockets of a server whose request is not there yet: no task, no thread and no timer for each.

It waits for nothing: the server's kind says when a socket can be read, and when time is over.
"""

from __future__ import annotations

import collections
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.negotiation import READ_SIZE
from .._handshake.pending_handshake import PendingHandshake
from .._native import ServerOpening
from .handshake_limiter import HandshakeLimiterBase

__all__ = ["GreetingsBase"]


class GreetingsBase:
    """The sockets of a server that wait for their request.

    Args:
        clock: Returns the present time.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Has a place for each of them.
        make_opening: Makes what takes the bytes of a request; ``None`` with TLS, whose first record is waited for.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        patience: float | None,
        limiter: HandshakeLimiterBase,
        make_opening: Callable[[], ServerOpening] | None,
    ) -> None:
        self._clock = clock
        self._patience = patience
        self._limiter = limiter
        self._make_opening = make_opening
        # In the order in which their time runs out. An OrderedDict, as the first of it is looked for often.
        self._waiting: collections.OrderedDict[PendingHandshake, None] = collections.OrderedDict()

    def _admit(self, sock: socket_module.socket, address: Any) -> PendingHandshake | None:
        """Wait for the request of a socket; return it if there is nothing to wait for."""
        deadline = None if self._patience is None else self._clock() + self._patience
        pending = PendingHandshake(sock, address, deadline, self._dropped)
        try:
            if not pending.receive(sock.recv(READ_SIZE), self._make_opening):
                return pending
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as exc:
            pending.is_lost = isinstance(exc, ConnectionError)
            return pending  # it shows again
        pending.entry = self._limiter.enter(pending, address)
        self._waiting[pending] = None
        self._watch(pending)
        return None

    def _receive(self, pending: PendingHandshake) -> bool:
        """Take what came; return whether the waiting is over. Then nobody here has it any more."""
        if pending not in self._waiting:
            return False  # dropped meanwhile, when its bytes were seen already
        try:
            if pending.receive(pending.sock.recv(READ_SIZE), self._make_opening):
                if pending.entry is not None:
                    self._limiter.progress(pending.entry)
                return False
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as exc:
            pending.is_lost = isinstance(exc, ConnectionError)  # it shows again
        self._forget(pending)
        return True

    def _deadline(self) -> float | None:
        """Return when somebody's time is over, ``None`` for never."""
        return next(iter(self._waiting)).deadline if self._waiting else None

    def _take(self, until: float | None = None) -> PendingHandshake | None:
        """Return one that waits, if there is one: whose time is over by then, or any. Nobody here has it any more."""
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
        """See to it that :meth:`_receive` is called when something comes."""
        raise NotImplementedError

    def _forget(self, pending: PendingHandshake) -> None:
        del self._waiting[pending]
