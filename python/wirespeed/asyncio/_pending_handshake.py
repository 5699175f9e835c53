"""Accepted sockets of an asyncio server whose request is not there yet: its loop watches them."""

from __future__ import annotations

import asyncio
import functools
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.pending_handshake import PendingHandshake
from .._native import LoopState, ServerOpening
from .._serving.pending_handshakes import GreetingsBase
from ._handshake_limiter import HandshakeLimiter

__all__ = ["PendingHandshakes"]

Came = Callable[[PendingHandshake, bool], None]


class PendingHandshakes(GreetingsBase):
    """The sockets of a server that wait for their request.

    Args:
        loop: The event loop; it has ``add_reader``.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        limiter: Has a place for each of them.
        make_opening: Makes what takes the bytes of a request; ``None`` with TLS, whose first record is waited for.
        came: Called with one that has waited enough, and whether its descriptor is watched: that must be ended, or a
            connection that begins replaces it. It takes the socket over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        patience: float | None,
        limiter: HandshakeLimiter,
        make_opening: Callable[[], ServerOpening] | None,
        came: Came,
    ) -> None:
        super().__init__(loop.time, patience, limiter, make_opening)
        self._loop = loop
        self._came = came
        self._state = LoopState.of(loop)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket_module.socket, address: Any) -> None:
        """Wait for the request of a socket.

        Args:
            sock: An accepted non-blocking socket.
            address: Of its other end.
        """
        pending = self._admit(sock, address)
        if pending is not None:
            self._came(pending, False)

    def ignore(self, descriptor: int) -> None:
        """Watch a descriptor no longer that was handed over.

        Args:
            descriptor: Its number.
        """
        self._state._ignore(descriptor)

    def release(self) -> None:
        """Hand over all sockets that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (pending := self._take()) is not None:
            self._came(pending, True)

    def _watch(self, pending: PendingHandshake) -> None:
        if self._timer is None and pending.deadline is not None:
            self._timer = self._loop.call_at(pending.deadline, self._expire)
        self._state._watch(pending.sock.fileno(), functools.partial(self._readable, pending))

    def _readable(self, pending: PendingHandshake) -> None:
        if self._receive(pending):
            self._came(pending, True)

    def _dropped(self, pending: PendingHandshake) -> None:
        self.ignore(pending.sock.fileno())
        super()._dropped(pending)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while (pending := self._take(now)) is not None:
            self._came(pending, True)
        if self._timer is None and (deadline := self._deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._expire)
