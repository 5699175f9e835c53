"""Accepted sockets of a server whose request is not there yet: no task, no thread and no timer for each.

It waits for nothing: the server's kind says when a socket can be read, and when time is over.
"""

from __future__ import annotations

import collections
import socket as socket_module
from collections.abc import Callable
from typing import Any

from .._handshake.greeting import Greeting
from .._handshake.negotiation import READ_SIZE
from .._native import ServerOpening
from .gate import GateBase

__all__ = ["GreetingsBase"]


class GreetingsBase:
    """The sockets of a server that wait for their request.

    Args:
        clock: Returns the present time.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        gate: Has a place for each of them.
        make_opening: Makes what takes the bytes of a request; ``None`` with TLS, whose first record is waited for.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        patience: float | None,
        gate: GateBase,
        make_opening: Callable[[], ServerOpening] | None,
    ) -> None:
        self._clock = clock
        self._patience = patience
        self._gate = gate
        self._make_opening = make_opening
        # In the order in which their time runs out. An OrderedDict, as the first of it is looked for often.
        self._waiting: collections.OrderedDict[Greeting, None] = collections.OrderedDict()

    def _admit(self, sock: socket_module.socket, address: Any) -> Greeting | None:
        """Wait for the request of a socket; return it if there is nothing to wait for."""
        deadline = None if self._patience is None else self._clock() + self._patience
        greeting = Greeting(sock, address, deadline, self._dropped)
        try:
            if not greeting.receive(sock.recv(READ_SIZE), self._make_opening):
                return greeting
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as exc:
            greeting.is_lost = isinstance(exc, ConnectionError)
            return greeting  # it shows again
        greeting.entry = self._gate.enter(greeting, address)
        self._waiting[greeting] = None
        self._watch(greeting)
        return None

    def _receive(self, greeting: Greeting) -> bool:
        """Take what came; return whether the waiting is over. Then nobody here has it any more."""
        if greeting not in self._waiting:
            return False  # dropped meanwhile, when its bytes were seen already
        try:
            if greeting.receive(greeting.sock.recv(READ_SIZE), self._make_opening):
                if greeting.entry is not None:
                    self._gate.progress(greeting.entry)
                return False
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as exc:
            greeting.is_lost = isinstance(exc, ConnectionError)  # it shows again
        self._forget(greeting)
        return True

    def _deadline(self) -> float | None:
        """Return when somebody's time is over, ``None`` for never."""
        return next(iter(self._waiting)).deadline if self._waiting else None

    def _take(self, until: float | None = None) -> Greeting | None:
        """Return one that waits, if there is one: whose time is over by then, or any. Nobody here has it any more."""
        if not self._waiting:
            return None
        greeting = next(iter(self._waiting))
        if until is not None and (greeting.deadline is None or greeting.deadline > until):
            return None
        self._forget(greeting)
        return greeting

    def _dropped(self, greeting: Greeting) -> None:
        self._forget(greeting)
        greeting.sock.close()

    def _watch(self, greeting: Greeting) -> None:
        """See to it that :meth:`_receive` is called when something comes."""
        raise NotImplementedError

    def _forget(self, greeting: Greeting) -> None:
        del self._waiting[greeting]
