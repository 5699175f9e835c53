"""Accepted sockets of a blocking server whose request is not there yet: the thread that accepts waits for all."""

from __future__ import annotations

import selectors
import socket as socket_module
import time
from collections.abc import Callable
from typing import Any

from .._handshake.pending_handshake import PendingHandshake
from .._native import ServerOpening
from .._serving.pending_handshakes import GreetingsBase
from ._handshake_limiter import HandshakeLimiter

__all__ = ["PendingHandshakes"]


class PendingHandshakes(GreetingsBase):
    """The sockets of a server that wait for their request. One thread calls this.

    Args:
        selector: Selector of that thread. The data of each key is a ``PendingHandshake``.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Has a place for each of them.
        make_opening: Makes what takes the bytes of a request; ``None`` with TLS, whose first record is waited for.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        patience: float | None,
        limiter: HandshakeLimiter,
        make_opening: Callable[[], ServerOpening] | None,
    ) -> None:
        super().__init__(time.monotonic, patience, limiter, make_opening)
        self._selector = selector

    def add(self, sock: socket_module.socket, address: Any) -> PendingHandshake | None:
        """Wait for the request of a socket; return it if there is nothing to wait for.

        Args:
            sock: An accepted non-blocking socket.
            address: Of its other end.
        """
        return self._admit(sock, address)

    def readable(self, pending: PendingHandshake) -> bool:
        """Receive; return whether the waiting is over. Then nobody here has it any more.

        Args:
            pending: One whose socket is ready.
        """
        return self._receive(pending)

    def timeout(self) -> float | None:
        """Return in how many seconds somebody's time is over, ``None`` for never."""
        deadline = self._deadline()
        return None if deadline is None else max(0.001, deadline - self._clock())

    def expired(self) -> PendingHandshake | None:
        """Return one whose time is over, if there is one. Nobody here has it any more."""
        return self._take(self._clock())

    def release(self) -> PendingHandshake | None:
        """Return any one that waits, if there is one. Nobody here has it any more."""
        return self._take()

    def _watch(self, pending: PendingHandshake) -> None:
        self._selector.register(pending.sock, selectors.EVENT_READ, pending)

    def _forget(self, pending: PendingHandshake) -> None:
        super()._forget(pending)
        self._selector.unregister(pending.sock)
