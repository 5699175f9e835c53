"""The interface to uvicorn: its settings and functions. No other module imports uvicorn."""

from __future__ import annotations

import importlib
from typing import Any

from .._native import NativeServerOptions
from .._options.server import AsyncServerOptions

__all__ = ["TRACE", "ClientDisconnected", "Settings", "http_version_of", "settings_of", "utils"]

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
