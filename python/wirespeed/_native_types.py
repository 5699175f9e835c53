"""What crosses the border to the native core, beside its classes."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["ConnectOptions", "DeflateOptions", "EngineSettings", "SharedSettings", "Stats"]


class DeflateOptions(TypedDict):
    """Settings of permessage-deflate."""

    level: int
    memory_level: int
    threshold: int
    server_no_context_takeover: bool
    client_no_context_takeover: bool
    server_max_window_bits: int | None
    client_max_window_bits: int | None


class SharedSettings(TypedDict):
    """How a connection is to behave, at either end."""

    subprotocols: list[str]
    deflate: DeflateOptions | None
    max_size: int | None
    max_fragment_size: int | None
    max_fragments: int | None
    queue_messages: int
    queue_bytes: int
    ping_interval: float | None
    ping_timeout: float | None
    close_timeout: float | None


class ConnectOptions(SharedSettings):
    """The same, and what to ask for in an opening handshake."""

    host: str
    target: str
    origin: str | None
    user_agent: str | None
    authorization: str | None
    headers: list[tuple[str, str]]


class EngineSettings(TypedDict):
    """What an engine answers over HTTP, and how it ends."""

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
    """Counters of a connection. Bytes are those of payloads, uncompressed; queues are as they are now."""

    messages_received: int
    bytes_received: int
    messages_sent: int
    bytes_sent: int
    receive_queue_messages: int
    receive_queue_bytes: int
    send_queue_bytes: int
