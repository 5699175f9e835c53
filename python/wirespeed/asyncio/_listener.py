"""The callback API: ``Listener``, the base class for objects that receive the events of a connection."""

from __future__ import annotations

import inspect
from typing import Any

from ._connection import Connection

__all__ = ["Listener"]


class Listener:
    """Receives messages and events of a connection. Pass an instance to :func:`wirespeed.connect` as ``listener``.

    Override the methods that you need; others cost nothing. The event loop calls them, one at a time, so they must not
    block. If ``on_message`` is overridden, it receives all messages, and ``recv`` and similar methods raise
    ``RuntimeError``; otherwise messages are received as without a listener. Messages are delivered at once, so
    ``max_queue`` does not limit them: a listener that stores messages needs its own limit.

    An exception in a method closes the connection with code 1011, and :meth:`ClientConnection.wait_closed` raises it.
    After it, only ``on_close`` is called. ``KeyboardInterrupt`` and ``SystemExit`` propagate to the event loop.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in vars(cls).items():
            if hasattr(Listener, name) and name.startswith("on_") and inspect.iscoroutinefunction(method):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async: begin a task in it for what has to wait")

    def on_open(self, ws: Connection) -> None:
        """Called when the connection is open, before all other methods.

        Args:
            ws: The connection.
        """

    # Any, so that an override can declare the types that it gets. They depend on the peer and on ``zero_copy``.
    def on_message(self, ws: Connection, message: Any) -> None:
        """Called when a message has arrived.

        Args:
            ws: The connection.
            message: ``str`` for text, ``bytes`` for binary; with ``zero_copy``, a read-only ``memoryview`` for binary.
                The view is meant for use during the call. It stays valid if you keep it, but then keeps the whole
                read buffer in memory.
        """

    def on_ping(self, ws: Connection, data: bytes) -> None:
        """Called when a ping has arrived. The pong is sent automatically.

        Args:
            ws: The connection.
            data: Payload of at most 125 bytes.
        """

    def on_pong(self, ws: Connection, data: bytes) -> None:
        """Called when a pong has arrived.

        Args:
            ws: The connection.
            data: Payload of at most 125 bytes.
        """

    def on_close(self, ws: Connection, code: int, reason: str) -> None:
        """Called once when the connection is closed, after all other methods.

        Args:
            ws: The connection.
            code: Code of the received close frame; 1005 if it has no code, 1006 if none was received.
            reason: Reason of the received close frame.
        """

    def on_writable(self, ws: Connection) -> None:
        """Called when there is room to send again, after ``send_nowait`` raised or reached ``write_limit``.

        Args:
            ws: The connection.
        """
