"""The states of a connection, named as in RFC 6455."""

from __future__ import annotations

import enum

__all__ = ["State"]


class State(enum.IntEnum):
    """State of a WebSocket connection."""

    CONNECTING = 0
    """The opening handshake is under way."""

    OPEN = 1
    """Messages can be sent and received."""

    CLOSING = 2
    """A close frame was sent or received; the connection is not closed yet."""

    CLOSED = 3
    """The TCP connection is closed."""
