"""Callbacks: the base class of what is told about a connection."""

from __future__ import annotations

import inspect
from typing import Any

from ._connection import Connection

__all__ = ["Listener"]


class Listener:
    """What happens on a connection, as calls: give one to :func:`wirespeed.connect` as ``listener``.

    Derive from it and override what you need; what is not overridden costs nothing. The methods are called by the
    event loop, one at a time, and must not block. With ``on_message``, messages go there, and ``recv`` and its kin
    raise ``RuntimeError``; without it, they are received as without a listener. Messages do not wait for a listener:
    ``max_queue`` does not count, and what keeps them needs a limit of its own.

    An exception in one of them closes the connection with code 1011, and is raised by
    :meth:`ClientConnection.wait_closed`; after it, only ``on_close`` is called. ``KeyboardInterrupt`` and
    ``SystemExit`` go to the event loop.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in vars(cls).items():
            if hasattr(Listener, name) and name.startswith("on_") and inspect.iscoroutinefunction(method):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async: begin a task in it for what has to wait")

    def on_open(self, ws: Connection) -> None:
        """The connection is open: before everything else.

        Args:
            ws: The connection.
        """

    # Any, so that an override may name the kinds that it gets: which they are, the peer and ``zero_copy``
    # decide.
    def on_message(self, ws: Connection, message: Any) -> None:
        """A message has arrived.

        Args:
            ws: The connection.
            message: ``str`` for text, ``bytes`` for binary; with ``zero_copy``, a read-only ``memoryview`` for binary.
                Such a view is meant for the duration of the call. One that is kept stays valid, but keeps the whole
                read buffer.
        """

    def on_ping(self, ws: Connection, data: bytes) -> None:
        """A ping has arrived; its pong is on its way.

        Args:
            ws: The connection.
            data: Its payload, 125 bytes at most.
        """

    def on_pong(self, ws: Connection, data: bytes) -> None:
        """A pong has arrived.

        Args:
            ws: The connection.
            data: Its payload, 125 bytes at most.
        """

    def on_close(self, ws: Connection, code: int, reason: str) -> None:
        """The connection is closed: after everything else, once.

        Args:
            ws: The connection.
            code: Code of the close frame that arrived; 1005 for one without a code, 1006 if none arrived.
            reason: Its reason.
        """

    def on_writable(self, ws: Connection) -> None:
        """There is room to send again, after ``send_nowait`` was refused or had filled what ``write_limit`` allows.

        Args:
            ws: The connection.
        """
