"""Accepted sockets of which nothing has come yet: no task, no timer and no coroutine for each of them.

Most clients send their request at once and in one piece, so that what comes first is all of it. Whatever else comes is
somebody else's to go on with.
"""

from __future__ import annotations

import asyncio
import socket as socket_module
from collections.abc import Callable
from typing import Any

from ..negotiation import READ_SIZE

__all__ = ["Greetings"]

Came = Callable[[socket_module.socket, Any, "bytes | None", "float | None", bool], None]


class Greetings:
    """The sockets of a server that wait for their first bytes.

    Args:
        loop: The event loop; it has ``add_reader``.
        patience: Seconds for the opening handshake, ``None`` for no limit.
        came: Called with a socket, the address of its other end, what was received (``None``: nothing yet), the time of
            the loop when the opening handshake must be complete, and whether the loop watches the descriptor, which it
            must then stop, or replace by another watch. It takes the socket over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float | None, came: Came) -> None:
        self._loop = loop
        self._patience = patience
        self._came = came
        # In the order in which their time runs out.
        self._waiting: dict[socket_module.socket, tuple[Any, float | None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sock: socket_module.socket, address: Any) -> None:
        """Wait for the first bytes of a socket.

        Args:
            sock: An accepted non-blocking socket.
            address: Of its other end.
        """
        deadline = None if self._patience is None else self._loop.time() + self._patience
        try:
            data = sock.recv(READ_SIZE)
        except OSError:
            # Nothing yet; an error shows again.
            self._waiting[sock] = address, deadline
            if deadline is not None and self._timer is None:
                self._timer = self._loop.call_at(deadline, self._expire)
            self._loop.add_reader(sock.fileno(), self._readable, sock)
        else:
            self._came(sock, address, data, deadline, False)

    def release(self) -> None:
        """Hand over all sockets that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sock in list(self._waiting):
            self._release(sock)

    def _release(self, sock: socket_module.socket) -> None:
        address, deadline = self._waiting.pop(sock)
        self._came(sock, address, None, deadline, True)

    def _readable(self, sock: socket_module.socket) -> None:
        try:
            data = sock.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._release(sock)
            return
        address, deadline = self._waiting.pop(sock)
        self._came(sock, address, data, deadline, True)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for sock, (_, deadline) in list(self._waiting.items()):
            if deadline is None:
                continue
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._expire)
                break
            self._release(sock)
