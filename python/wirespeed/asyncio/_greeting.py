"""Accepted sockets of an asyncio server whose request is not there yet: no task, no timer and no coroutine for each."""

from __future__ import annotations

import asyncio
import functools
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.greeting import Greeting
from .._handshake.negotiation import READ_SIZE
from .._native import LoopState, ServerOpening
from ._gate import Gate

__all__ = ["Greetings"]

Came = Callable[[Greeting, bool], None]


class Greetings:
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
        self._loop = loop
        self._patience = patience
        self._gate = gate
        self._make_opening = make_opening
        self._came = came
        self._state = LoopState.of(loop)
        # In the order in which their time runs out.
        self._waiting: dict[Greeting, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket_module.socket, address: Any) -> None:
        """Wait for the request of a socket.

        Args:
            sock: An accepted non-blocking socket.
            address: Of its other end.
        """
        deadline = None if self._patience is None else self._loop.time() + self._patience
        greeting = Greeting(sock, address, deadline, self._dropped)
        try:
            data = sock.recv(READ_SIZE)
        except OSError:
            pass  # nothing yet; an error shows again
        else:
            if not greeting.receive(data, self._make_opening):
                self._came(greeting, False)
                return
        greeting.entry = self._gate.enter(greeting, address)
        self._waiting[greeting] = None
        if deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        self._state._watch(sock.fileno(), functools.partial(self._readable, greeting))

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
        for greeting in list(self._waiting):
            self._release(greeting)

    def _release(self, greeting: Greeting) -> None:
        del self._waiting[greeting]
        self._came(greeting, True)

    def _dropped(self, greeting: Greeting) -> None:
        del self._waiting[greeting]
        self.ignore(greeting.sock.fileno())
        greeting.sock.close()

    def _readable(self, greeting: Greeting) -> None:
        if greeting not in self._waiting:
            return  # dropped in this turn of the loop, which had seen its bytes already
        try:
            data = greeting.sock.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._release(greeting)
            return
        if not greeting.receive(data, self._make_opening):
            self._release(greeting)
        elif greeting.entry is not None:
            self._gate.progress(greeting.entry)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for greeting in list(self._waiting):
            if greeting.deadline is None:
                continue
            if greeting.deadline > now:
                self._timer = self._loop.call_at(greeting.deadline, self._expire)
                break
            self._release(greeting)
