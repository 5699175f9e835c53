"""Types of arguments and results of the native core, besides its classes."""

from __future__ import annotations

import enum
from typing import TypedDict

__all__ = ["EngineSettings", "State", "Stats"]


class EngineSettings(TypedDict):
    """Settings of an engine's HTTP endpoints, and of its shutdown."""

    health: str | None
    ready: str | None
    metrics: tuple[str, int] | None
    metrics_path: str | None
    metrics_token: str | None
    page: str | None
    ready_without_broker: bool
    stuck_after: float
    handoff: str | None
    drain_timeout: float
    drain_batch: int


class Stats(TypedDict):
    """Counters of a connection. Bytes are uncompressed payload bytes. Queue sizes are current values."""

    messages_received: int
    bytes_received: int
    messages_sent: int
    bytes_sent: int
    receive_queue_messages: int
    receive_queue_bytes: int
    send_queue_bytes: int


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
