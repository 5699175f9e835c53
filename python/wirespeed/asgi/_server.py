"""What uvicorn says and offers: its settings in our form, its functions.

Nothing else imports uvicorn.
"""

from __future__ import annotations

import importlib
from typing import Any

from .._native import ServerSettings
from .._options.server import AsyncServerOptions
from ..asyncio._connection import native_arguments

__all__ = ["TRACE", "ClientDisconnected", "Settings", "http_version_of", "settings_of", "utils"]

# By name, so that type checkers need no uvicorn.
utils: Any = importlib.import_module("uvicorn.protocols.utils")

TRACE: int = importlib.import_module("uvicorn.logging").TRACE_LOG_LEVEL
"""The log level below DEBUG."""

ClientDisconnected: type[OSError] = utils.ClientDisconnected
"""What ``send`` raises once the connection is closed."""

# Bytes that are kept for an application that does not receive; uvicorn's own reads up to 256 KiB ahead.
_QUEUE_BYTES = 2**20


class Settings:
    """What all connections of a configuration share.

    Args:
        config: A ``uvicorn.Config``.
        max_fragments: The limit on a message's fragments, which uvicorn has no setting for.

    Attributes:
        native: For the opening handshake.
        arguments: For the constructor of connections.
    """

    __slots__ = ("arguments", "native")

    def __init__(self, config: Any, max_fragments: int | None) -> None:
        options = AsyncServerOptions(
            compression="deflate" if config.ws_per_message_deflate else None,
            ping_interval=_positive(config.ws_ping_interval),
            ping_timeout=_positive(config.ws_ping_timeout),
            max_size=config.ws_max_size,
            max_fragments=max_fragments,
            # A count says little about memory: by bytes alone.
            max_queue=None,
            max_queue_bytes=_QUEUE_BYTES,
        )
        self.native: ServerSettings = options.native()
        self.arguments = native_arguments(options)


def settings_of(config: Any, max_fragments: int | None) -> Settings:
    """Return the settings that a configuration means, made once: it has one class of WebSockets.

    Args:
        config: A ``uvicorn.Config``.
        max_fragments: That of its class.
    """
    found: Settings | None = getattr(config, "_wirespeed_settings", None)
    if found is None:
        found = config._wirespeed_settings = Settings(config, max_fragments)
    return found


def http_version_of(transport: Any) -> str:
    """Return the version of HTTP in which a client has asked for a WebSocket. The head that uvicorn makes has it not.

    Args:
        transport: Its protocol is still the one that has parsed the request.
    """
    try:
        version = transport.get_protocol().scope["http_version"]
    except (AttributeError, KeyError, TypeError):
        # Another parser of HTTP than those that uvicorn has.
        return "1.1"
    return version if isinstance(version, str) else "1.1"


def _positive(seconds: float | None) -> float | None:
    """Return seconds, ``None`` for no limit: as with uvicorn, 0 switches off too."""
    return seconds if seconds is not None and seconds > 0 else None
