"""Accepted sockets of a blocking server whose request is not there yet: the thread that accepts waits for all."""

from __future__ import annotations

import collections
import selectors
import socket as socket_module
import time
from collections.abc import Callable
from typing import Any

from .._handshake.greeting import Greeting
from .._handshake.negotiation import READ_SIZE
from .._native import ServerOpening
from ._gate import Gate

__all__ = ["Greetings"]


class Greetings:
    """The sockets of a server that wait for their request. One thread calls this.

    Args:
        selector: What that thread waits with. The data of a key is a :class:`wirespeed._handshake.greeting.Greeting`.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        gate: Has a place for each of them.
        make_opening: Makes what takes the bytes of a request; ``None`` with TLS, whose first record is waited for.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        patience: float | None,
        gate: Gate,
        make_opening: Callable[[], ServerOpening] | None,
    ) -> None:
        self._selector = selector
        self._patience = patience
        self._gate = gate
        self._make_opening = make_opening
        # In the order in which their time runs out. An OrderedDict, as the first of it is looked for often.
        self._waiting: collections.OrderedDict[Greeting, None] = collections.OrderedDict()

    def add(self, sock: socket_module.socket, address: Any) -> Greeting | None:
        """Wait for the request of a socket; return it if there is nothing to wait for.

        Args:
            sock: An accepted non-blocking socket.
            address: Of its other end.
        """
        deadline = None if self._patience is None else time.monotonic() + self._patience
        greeting = Greeting(sock, address, deadline, self._drop)
        if not self._waits_on(greeting):
            return greeting
        greeting.entry = self._gate.enter(greeting, address)
        self._waiting[greeting] = None
        self._selector.register(sock, selectors.EVENT_READ, greeting)
        return None

    def readable(self, greeting: Greeting) -> bool:
        """Receive; return whether the waiting is over. Then nobody here has it any more.

        Args:
            greeting: One whose socket is ready.
        """
        if greeting not in self._waiting:
            return False  # dropped meanwhile
        if not self._waits_on(greeting):
            self._forget(greeting)
            return True
        if greeting.entry is not None:
            self._gate.progress(greeting.entry)
        return False

    def timeout(self) -> float | None:
        """Return in how many seconds somebody's time is over, ``None`` for never."""
        if self._waiting:
            deadline = next(iter(self._waiting)).deadline
            if deadline is not None:
                return max(0.001, deadline - time.monotonic())
        return None

    def expired(self) -> Greeting | None:
        """Return one whose time is over, if there is one. Nobody here has it any more."""
        if self._waiting:
            greeting = next(iter(self._waiting))
            if greeting.deadline is not None and greeting.deadline <= time.monotonic():
                self._forget(greeting)
                return greeting
        return None

    def release(self) -> Greeting | None:
        """Return any one that waits, if there is one. Nobody here has it any more."""
        if not self._waiting:
            return None
        greeting = next(iter(self._waiting))
        self._forget(greeting)
        return greeting

    def _waits_on(self, greeting: Greeting) -> bool:
        try:
            data = greeting.sock.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False  # it shows again
        return greeting.receive(data, self._make_opening)

    def _forget(self, greeting: Greeting) -> None:
        del self._waiting[greeting]
        self._selector.unregister(greeting.sock)

    def _drop(self, greeting: Greeting) -> None:
        self._forget(greeting)
        greeting.sock.close()
