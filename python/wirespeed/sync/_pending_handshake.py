"""Accepted sockets whose request has not arrived yet: the accepting thread of a blocking server waits for all."""

from __future__ import annotations

import selectors
import socket as socket_module
import time
from collections.abc import Callable
from typing import Any

from .._handshake.pending_handshake import PendingHandshake
from .._native import ServerOpening
from .._server.pending_handshakes import PendingHandshakesBase
from ._handshake_limiter import HandshakeLimiter

__all__ = ["PendingHandshakes"]


class PendingHandshakes(PendingHandshakesBase):
    """The sockets of a server that wait for their request. Only the accepting thread calls it.

    Args:
        selector: Selector of that thread. The data of each key is a ``PendingHandshake``.
        open_timeout: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Counts the pending handshakes.
        make_opening: Creates the parser of a request; ``None`` with TLS, where the first record is awaited instead.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        open_timeout: float | None,
        limiter: HandshakeLimiter,
        make_opening: Callable[[], ServerOpening] | None,
    ) -> None:
        super().__init__(time.monotonic, open_timeout, limiter, make_opening)
        self._selector = selector

    def add(self, sock: socket_module.socket, address: Any) -> PendingHandshake | None:
        """Add a socket; return it if it need not wait, because its request or an error is there already.

        Args:
            sock: An accepted non-blocking socket.
            address: Address of its peer.
        """
        return self._admit(sock, address)

    def readable(self, pending: PendingHandshake) -> bool:
        """Receive from a socket; return whether it need not wait any more, and is removed from this object.

        Args:
            pending: A handshake whose socket is readable.
        """
        return self._receive(pending)

    def timeout(self) -> float | None:
        """Return in how many seconds the next deadline is, ``None`` for never."""
        deadline = self._deadline()
        return None if deadline is None else max(0.001, deadline - self._clock())

    def expired(self) -> PendingHandshake | None:
        """Remove and return a handshake whose deadline has passed, ``None`` without one."""
        return self._take(self._clock())

    def release(self) -> PendingHandshake | None:
        """Remove and return any handshake, ``None`` without one."""
        return self._take()

    def _watch(self, pending: PendingHandshake) -> None:
        self._selector.register(pending.sock, selectors.EVENT_READ, pending)

    def _forget(self, pending: PendingHandshake) -> None:
        super()._forget(pending)
        self._selector.unregister(pending.sock)
