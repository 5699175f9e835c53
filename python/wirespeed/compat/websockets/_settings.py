"""Converts keyword arguments of websockets, for clients and servers of both APIs."""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from ...close_codes import CloseCode
from ...datastructures import Headers
from ...exceptions import ProtocolError

__all__ = [
    "additional",
    "MAX_FRAGMENTS",
    "MAX_REDIRECTS",
    "UNSUPPORTED",
    "adapter",
    "check_code",
    "close_timeout",
    "exact_origins",
    "not_negative",
    "check_subprotocols",
    "check_overrides",
    "reject",
]

MAX_FRAGMENTS = int(os.environ.get("WEBSOCKETS_MAX_FRAGMENTS", "4096"))
MAX_REDIRECTS = int(os.environ.get("WEBSOCKETS_MAX_REDIRECTS", "10"))

# Methods of connections that websockets calls with frames or bytes. Here these do not pass through Python.
UNSUPPORTED = (
    "acknowledge_pings",
    "connection_lost",
    "connection_made",
    "data_received",
    "drain",
    "eof_received",
    "handshake",
    "keepalive",
    "pause_writing",
    "process_event",
    "recv_events",
    "resume_writing",
    "send_context",
    "send_data",
    "start_keepalive",
    "terminate_pending_pings",
)


def adapter(logger: Any, connection: Any) -> Any:
    """Return a logger whose records have the connection as attribute ``websocket``.

    Args:
        logger: The logger.
        connection: The connection.
    """
    return logging.LoggerAdapter(logger, {"websocket": weakref.proxy(connection)})


def additional(headers: Any) -> Headers | None:
    """Return headers to add to a request; values are converted to ``str``.

    Args:
        headers: The argument of the user.

    Raises:
        InvalidHeader: A name or a value is not allowed in a request.
    """
    if headers is None:
        return None
    if hasattr(headers, "raw_items"):
        pairs = list(headers.raw_items())
    elif hasattr(headers, "keys"):
        pairs = [(name, headers[name]) for name in headers.keys()]  # noqa: SIM118 - it may not be iterable
    else:
        pairs = list(headers)
    return Headers([(name, str(value)) for name, value in pairs])


def check_code(code: int) -> None:
    """Raise ProtocolError for code 1005, which only wirespeed accepts, to send a close frame without a code.

    Args:
        code: The argument of the user.
    """
    if code == CloseCode.NO_STATUS_RCVD:
        raise ProtocolError(f"close code {int(code)} must not be sent")


def check_subprotocols(subprotocols: Any) -> None:
    """Raise TypeError unless the argument is a list of subprotocols.

    Args:
        subprotocols: The argument of the user.
    """
    if isinstance(subprotocols, str):
        raise TypeError("subprotocols must be a list, not a str")
    if subprotocols is not None and not isinstance(subprotocols, Iterable):
        raise TypeError("subprotocols must be a list")


def not_negative(limit: Any) -> Any:
    """Return a timeout that the core accepts: negative values become 0.

    Args:
        limit: Seconds, ``None`` for no limit.
    """
    return 0 if isinstance(limit, (int, float)) and limit < 0 else limit


def _close_timeout(connection: Any) -> float | None:
    """Timeout of closing in seconds, ``None`` for no limit. A change applies if closing has not begun yet."""
    limit: float | None = vars(connection)["close_timeout"]
    return limit


def _set_close_timeout(connection: Any, limit: float | None) -> None:
    connection._set_close_timeout(not_negative(limit))
    vars(connection)["close_timeout"] = limit


close_timeout = property(_close_timeout, _set_close_timeout)


def exact_origins(origins: Iterable[Any] | None) -> list[Any] | None:
    """Return origins to compare with. Any ``str`` is allowed, as in websockets, even if no browser sends it.

    Args:
        origins: The argument of the user.
    """
    if origins is None:
        return None
    return [re.compile(re.escape(origin)) if isinstance(origin, str) else origin for origin in origins]


def check_overrides(kind: type) -> None:
    """Raise NotImplementedError for a connection class that overrides methods which are never called.

    Args:
        kind: The class.
    """
    for base in kind.__mro__:
        if base.__module__.startswith("wirespeed."):
            break
        for name in UNSUPPORTED:
            if name in vars(base):
                raise NotImplementedError(
                    f"wirespeed does not call {base.__name__}.{name}: frames do not pass through Python; "
                    "override recv, send or close instead"
                )


def reject(options: Mapping[str, Any], function: str) -> None:
    """Raise TypeError for unknown keyword arguments.

    Args:
        options: The remaining arguments.
        function: Name of the function for the message.
    """
    for name in options:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
