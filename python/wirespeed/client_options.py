"""The keyword arguments of clients: checked here, once, for every kind of client.

It opens no connection.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

from ._native import ClientTLS
from ._native_types import ConnectOptions, DeflateOptions
from .compression import Deflate, deflate_options
from .datastructures import Headers, HeadersLike
from .proxy import basic_authorization
from .tls import TLS
from .typing import LoggerLike
from .uri import WebSocketURI

__all__ = ["ClientOptions", "check_headers", "native_tls"]

_QUEUE_BYTES = 4 * 2**20
"""Bytes that are kept for an application that does not receive: as much as the socket buffers of one connection hold on common systems."""

_UNLIMITED = 2**62


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Keyword arguments that do not depend on where a client connects to. Their names are those of ``connect``.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    origin: str | None = None
    subprotocols: Sequence[str] | None = None
    compression: Deflate | str | None = "deflate"
    user_agent_header: str | None = None
    open_timeout: float | None = 10
    ping_interval: float | None = 20
    ping_timeout: float | None = 20
    close_timeout: float | None = 10
    max_size: int | None | tuple[int | None, int | None] = 2**20
    max_fragments: int | None = 4096
    max_queue: int | None | tuple[int | None, int | None] = 16
    logger: LoggerLike | None = None
    _deflate: DeflateOptions | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        for name in ("origin", "user_agent_header"):
            _check_type(name, getattr(self, name), str, "a str or None")
        if self.subprotocols is not None:
            if isinstance(self.subprotocols, (str, bytes)) or not isinstance(self.subprotocols, Sequence):
                raise TypeError(f"subprotocols must be a list of str, not {type(self.subprotocols).__name__}")
            for subprotocol in self.subprotocols:
                if not isinstance(subprotocol, str):
                    raise TypeError(f"subprotocols must be a list of str, it contains a {type(subprotocol).__name__}")
        for name in ("open_timeout", "ping_interval", "ping_timeout", "close_timeout"):
            _check_seconds(name, getattr(self, name))
        for name, value in (
            *zip(("max_size", "max_size"), _pair(self.max_size), strict=True),
            ("max_fragments", self.max_fragments),
            *zip(("max_queue", "max_queue"), _pair(self.max_queue), strict=True),
        ):
            _check_count(name, value)
        if self.logger is not None and not hasattr(self.logger, "debug"):
            raise TypeError(f"logger must be a logging.Logger, not {type(self.logger).__name__}")
        object.__setattr__(self, "_deflate", deflate_options(self.compression))

    @property
    def effective_logger(self) -> LoggerLike:
        """The logger to use: the one given, or ``wirespeed.client``."""
        return logging.getLogger("wirespeed.client") if self.logger is None else self.logger

    def native(self, uri: WebSocketURI, headers: Headers | None) -> ConnectOptions:
        """Return the options of one attempt in the form of the native core.

        Args:
            uri: Where it goes.
            headers: Headers to add to the request.
        """
        message_size, fragment_size = _pair(self.max_size)
        queue = _pair(self.max_queue)[0]
        authorization = None
        # RFC 7617: user information of the URI as Basic authentication, unless the caller authenticates otherwise.
        if uri.user_info is not None and (headers is None or "Authorization" not in headers):
            authorization = basic_authorization(*uri.user_info)
        return {
            "host": uri.host_header,
            "target": uri.resource_name,
            "origin": self.origin,
            "subprotocols": list(self.subprotocols or ()),
            "deflate": self._deflate,
            "user_agent": self.user_agent_header,
            "authorization": authorization,
            "headers": [] if headers is None else list(headers.raw_items()),
            "max_size": message_size,
            "max_fragment_size": fragment_size,
            "max_fragments": self.max_fragments,
            "queue_messages": _UNLIMITED if queue is None else queue,
            "queue_bytes": _UNLIMITED if queue is None else _QUEUE_BYTES,
            "ping_interval": self.ping_interval,
            "ping_timeout": self.ping_timeout,
            "close_timeout": self.close_timeout,
        }


def native_tls(tls: TLS) -> ClientTLS:
    """Return the native form of TLS settings: equal settings share it, and with it resumed sessions.

    Args:
        tls: The settings.
    """
    arguments: dict[str, Any] = dict(tls._native_arguments())
    return _make_tls(tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in arguments.items()))


# As many as an application has different settings; the certificates of each take some kilobytes.
@functools.lru_cache(maxsize=64)
def _make_tls(arguments: tuple[tuple[str, Any], ...]) -> ClientTLS:
    return ClientTLS(**{name: list(v) if isinstance(v, tuple) else v for name, v in arguments})


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, None)


def _check_type(name: str, value: object, expected: type, description: str) -> None:
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{name} must be {description}, not {type(value).__name__}")


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} must not be negative; use None to switch it off")


def _check_count(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int or None, not {type(value).__name__}")
    if not 0 <= value < (2**32 if name == "max_fragments" else 2**62):
        raise ValueError(f"{name} must be between 0 and 2**{32 if name == 'max_fragments' else 62}; None is no limit")


def check_headers(headers: HeadersLike | None) -> Headers | None:
    """Return headers that a user passed as ``additional_headers``.

    Args:
        headers: What the user passed.

    Raises:
        TypeError: It is no mapping and no iterable of pairs of ``str``.
    """
    if headers is None:
        return None
    try:
        result = Headers(headers)
    except (TypeError, ValueError, AttributeError) as exc:
        raise TypeError("additional_headers must be a mapping or an iterable of (name, value) pairs") from exc
    for name, value in result.raw_items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"additional_headers must consist of str; {name!r} does not")
    return result
