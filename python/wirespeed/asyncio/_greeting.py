"""Accepted sockets of an asyncio server whose request is not there yet: its loop watches them."""

from __future__ import annotations

import asyncio
import functools
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.greeting import Greeting
from .._native import LoopState, ServerOpening
from .._serving.greetings import GreetingsBase
from ._gate import Gate

__all__ = ["Greetings"]

Came = Callable[[Greeting, bool], None]


class Greetings(GreetingsBase):
    """The sockets of a server that wait for their request.

    Args:
        loop: The event loop; it has ``add_reader``.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        gate: Has a place for each of them.
        make_opening: Makes what takes the bytes of a request; ``None`` with TLS, whose first record is waited for.
        came: Called with one that has waited enough, and whether its descriptor is watched: that must be ended, or a
            connection that begins replaces it. It takes the socket over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        patience: float | None,
        gate: Gate,
        make_opening: Callable[[], ServerOpening] | None,
        came: Came,
    ) -> None:
        super().__init__(loop.time, patience, gate, make_opening)
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
        greeting = self._admit(sock, address)
        if greeting is not None:
            self._came(greeting, False)

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
        while (greeting := self._take()) is not None:
            self._came(greeting, True)

    def _watch(self, greeting: Greeting) -> None:
        if self._timer is None and greeting.deadline is not None:
            self._timer = self._loop.call_at(greeting.deadline, self._expire)
        self._state._watch(greeting.sock.fileno(), functools.partial(self._readable, greeting))

    def _readable(self, greeting: Greeting) -> None:
        if self._receive(greeting):
            self._came(greeting, True)

    def _dropped(self, greeting: Greeting) -> None:
        self.ignore(greeting.sock.fileno())
        super()._dropped(greeting)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while (greeting := self._take(now)) is not None:
            self._came(greeting, True)
        if self._timer is None and (deadline := self._deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._expire)
