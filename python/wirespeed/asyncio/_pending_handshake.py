"""Accepted sockets whose request has not arrived yet, watched by the event loop of an asyncio server."""

from __future__ import annotations

import asyncio
import functools
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.pending_handshake import PendingHandshake
from .._native import LoopState, ServerOpening
from .._server.pending_handshakes import PendingHandshakesBase
from ._handshake_limiter import HandshakeLimiter

__all__ = ["PendingHandshakes"]

OnRequest = Callable[[PendingHandshake, bool], None]


class PendingHandshakes(PendingHandshakesBase):
    """The sockets of a server that wait for their request.

    Args:
        loop: The event loop; it must have ``add_reader``.
        open_timeout: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Counts the pending handshakes.
        make_opening: Creates the parser of a request; ``None`` with TLS, where the first record is awaited instead.
        on_request: Called with each socket that need not wait longer, and whether its descriptor is still watched. It
            takes the socket over, and must call :meth:`ignore` or attach a connection that replaces the watch.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_timeout: float | None,
        limiter: HandshakeLimiter,
        make_opening: Callable[[], ServerOpening] | None,
        on_request: OnRequest,
    ) -> None:
        super().__init__(loop.time, open_timeout, limiter, make_opening)
        self._loop = loop
        self._on_request = on_request
        self._state = LoopState.of(loop)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket_module.socket, address: Any) -> None:
        """Wait for the request of a socket.

        Args:
            sock: An accepted non-blocking socket.
            address: Address of its peer.
        """
        pending = self._admit(sock, address)
        if pending is not None:
            self._on_request(pending, False)

    def ignore(self, descriptor: int) -> None:
        """Stop watching the descriptor of a socket that was passed on.

        Args:
            descriptor: The descriptor.
        """
        self._state._ignore(descriptor)

    def release(self) -> None:
        """Pass on all waiting sockets."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (pending := self._take()) is not None:
            self._on_request(pending, True)

    def _watch(self, pending: PendingHandshake) -> None:
        if self._timer is None and pending.deadline is not None:
            self._timer = self._loop.call_at(pending.deadline, self._expire)
        self._state._watch(pending.sock.fileno(), functools.partial(self._readable, pending))

    def _readable(self, pending: PendingHandshake) -> None:
        if self._receive(pending):
            self._on_request(pending, True)

    def _dropped(self, pending: PendingHandshake) -> None:
        self.ignore(pending.sock.fileno())
        super()._dropped(pending)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while (pending := self._take(now)) is not None:
            self._on_request(pending, True)
        if self._timer is None and (deadline := self._deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._expire)
