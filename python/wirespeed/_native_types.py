"""Types of arguments and results of the native core, besides its classes."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["EngineSettings", "Stats"]


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
