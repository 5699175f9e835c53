"""The interface to uvicorn: its settings and functions, and the request head that it writes.

No other module imports uvicorn.
"""

from __future__ import annotations

import importlib
from typing import Any

from .._native import NativeServerOptions
from .._options.server import AsyncServerOptions

__all__ = [
    "ClientDisconnected",
    "HEAD_BYTES",
    "Settings",
    "TRACE",
    "essential_head",
    "http_version_of",
    "settings_of",
    "utils",
    "with_version",
]

# Imported by name, so that type checkers do not need uvicorn.
utils: Any = importlib.import_module("uvicorn.protocols.utils")

TRACE: int = importlib.import_module("uvicorn.logging").TRACE_LOG_LEVEL
"""The log level below DEBUG."""

ClientDisconnected: type[OSError] = utils.ClientDisconnected
"""The exception that ``send`` raises once the connection is closed."""

# Bytes to keep for an application that does not receive; uvicorn's own implementation reads up to 256 KiB ahead.
_QUEUE_BYTES = 2**20


class Settings:
    """The settings that all connections of a configuration share.

    Args:
        config: A ``uvicorn.Config``.
        max_fragments: Maximum number of fragments of a message, for which uvicorn has no setting.

    Attributes:
        native: The options of connections in native form.
    """

    __slots__ = ("native",)

    def __init__(self, config: Any, max_fragments: int | None) -> None:
        options = AsyncServerOptions(
            {
                "compression": "deflate" if config.ws_per_message_deflate else None,
                "ping_interval": _positive(config.ws_ping_interval),
                "ping_timeout": _positive(config.ws_ping_timeout),
                "max_size": config.ws_max_size,
                "max_fragments": max_fragments,
                # A number of messages says little about memory, so only bytes count.
                "max_queue": None,
                "max_queue_bytes": _QUEUE_BYTES,
            }
        )
        self.native: NativeServerOptions = options.native


def settings_of(config: Any, max_fragments: int | None) -> Settings:
    """Return the settings of a configuration. They are created once, because it has one WebSocket class.

    Args:
        config: A ``uvicorn.Config``.
        max_fragments: The attribute of its WebSocket class.
    """
    found: Settings | None = getattr(config, "_wirespeed_settings", None)
    if found is None:
        found = config._wirespeed_settings = Settings(config, max_fragments)
    return found


def http_version_of(transport: Any) -> str:
    """Return the HTTP version of a request. The head that uvicorn writes does not have it.

    Args:
        transport: The transport, which still has the protocol that parsed the request.
    """
    try:
        version = transport.get_protocol().scope["http_version"]
    except (AttributeError, KeyError, TypeError):
        # A protocol that is not one of uvicorn's.
        return "1.1"
    return version if isinstance(version, str) else "1.1"


def _positive(seconds: float | None) -> float | None:
    """Return seconds, ``None`` for no limit: as in uvicorn, 0 also means no limit."""
    return seconds if seconds is not None and seconds > 0 else None


HEAD_BYTES = 2**16
"""Maximum size of a head in bytes: the limit of h11, which uvicorn uses by default."""

# Limits of the core: bytes and number of fields of a head.
_CORE_BYTES = 2**14
_CORE_FIELDS = 128

# Fields that the core uses, besides names that begin with sec-websocket- (RFC 6455, section 4.2.1; RFC 9112, section
# 6).
_ESSENTIAL = frozenset([b"host", b"upgrade", b"connection", b"content-length", b"transfer-encoding"])


def with_version(head: bytes, version: str) -> bytes:
    """Return a head with the HTTP version that the client sent.

    Args:
        head: A head written by uvicorn.
        version: The version, such as ``1.0``.
    """
    if version == "1.1":
        return head
    return head.replace(b" HTTP/1.1\r\n", b" HTTP/%s\r\n" % version.encode("ascii"), 1)


def essential_head(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]] | None]:
    """Return a head within the limits of the core, without fields that only the application needs, and all fields.

    If the head is within the limits, or above the limit of uvicorn, it is returned unchanged with ``None``: the core
    then has, or refuses, all fields. Long heads usually have cookies or tokens, which the connection need not keep.

    Args:
        head: A head written by uvicorn.
    """
    if not _CORE_BYTES < len(head) <= HEAD_BYTES:
        return head, None
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) > _CORE_FIELDS:
        return head, None
    kept, fields = [first], []
    for line in lines:
        name, _, value = line.partition(b":")
        if name in _ESSENTIAL or name.startswith(b"sec-websocket-"):
            kept.append(line)
        fields.append((name, value.strip(b" \t")))
    return b"\r\n".join([*kept, b"", b""]), fields
