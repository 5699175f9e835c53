"""The keyword arguments of clients: checked here, once, for every kind of client.

It opens no connection.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import re
import socket
import ssl as ssl_module
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ._native import ClientTLS
from ._native_types import ConnectOptions, DeflateOptions
from .addresses import HAPPY_EYEBALLS_DELAY
from .compression import Deflate, deflate_options
from .datastructures import Headers, HeadersLike
from .exceptions import InvalidHeader
from .proxy import basic_authorization
from .redirects import RedirectChain
from .tls import TLS
from .typing import LoggerLike, PathLike
from .uri import WebSocketURI

__all__ = ["QUEUE_BYTES", "AsyncClientOptions", "ClientOptions", "Network", "check_headers", "native_tls"]

QUEUE_BYTES = 4 * 2**20
"""Bytes that are kept for an application that does not receive: as much as the socket buffers of one connection hold
on common systems."""

_UNLIMITED = 2**62

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
    max_size: int | tuple[int | None, int | None] | None = 2**20
    max_fragments: int | None = 4096
    max_queue: int | tuple[int | None, int | None] | None = 16
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
                # RFC 6455, section 4.1: tokens of RFC 9110.
                if not _TOKEN.fullmatch(subprotocol):
                    raise ValueError(f"subprotocols must be tokens, without spaces or commas; {subprotocol!r} is not")
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
            "queue_bytes": _UNLIMITED if queue is None else QUEUE_BYTES,
            "ping_interval": self.ping_interval,
            "ping_timeout": self.ping_timeout,
            "close_timeout": self.close_timeout,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsyncClientOptions(ClientOptions):
    """The same for a client on an event loop, with what only such clients have.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    max_queue_bytes: int | None = QUEUE_BYTES
    write_limit: int | tuple[int, int | None] = 2**15
    yield_after: int = 1024
    io_port: str | None = None
    listener: object | None = None
    zero_copy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("max_queue_bytes", self.max_queue_bytes)
        for value in _pair(self.write_limit):
            _check_count("write_limit", value)
        if _pair(self.write_limit)[0] is None:
            raise TypeError("write_limit must be an int, not None")
        if self.yield_after is None:
            raise TypeError("yield_after must be an int, not None")
        _check_count("yield_after", self.yield_after)
        for name in ("max_queue", "write_limit"):
            high, low = _pair(getattr(self, name))
            if high is not None and low is not None and low > high:
                raise ValueError(f"{name} must be a pair of high and low marks; {low} is above {high}")
        if self.io_port not in (None, "fd", "transport"):
            raise ValueError(f'io_port must be "fd", "transport" or None, not {self.io_port!r}')
        if not isinstance(self.zero_copy, bool):
            raise TypeError(f"zero_copy must be a bool, not {type(self.zero_copy).__name__}")
        if isinstance(self.listener, type):
            raise TypeError(f"listener must be an object, not a class; write {self.listener.__name__}()")
        if self.zero_copy and self.listener is None:
            raise ValueError("zero_copy needs a listener: what recv() returns must stay valid")


def native_tls(tls: TLS) -> ClientTLS:
    """Return the native form of TLS settings: equal settings share it, and with it resumed sessions.

    Args:
        tls: The settings.
    """
    # Where the system's authorities are is part of the settings.
    return _make_tls(tls, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


# As many as an application has different settings; the certificates of each take some kilobytes.
@functools.lru_cache(maxsize=64)
def _make_tls(tls: TLS, _cert_file: str | None, _cert_dir: str | None) -> ClientTLS:
    return ClientTLS(**tls._native_arguments())


def _pair(value: Any) -> tuple[Any, Any]:
    return (value[0], value[1]) if isinstance(value, tuple) and len(value) == 2 else (value, None)


def _check_type(name: str, value: object, expected: type | tuple[type, ...], description: str) -> None:
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{name} must be {description}, not {type(value).__name__}")


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} must not be negative; use None to switch it off")
    if value == 0 and name.startswith("ping"):
        raise ValueError(f"{name} must not be 0; use None to switch it off")


def _check_count(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int or None, not {type(value).__name__}")
    low, bits = {"max_fragments": (1, 32), "yield_after": (1, 32)}.get(name, (0, 62))
    if not low <= value < 2**bits:
        raise ValueError(f"{name} must be at least {low} and less than 2**{bits}; None is no limit")


def check_headers(headers: HeadersLike | None) -> Headers | None:
    """Return headers that a user passed as ``additional_headers``.

    Args:
        headers: What the user passed.

    Raises:
        TypeError: It is no mapping and no iterable of pairs of ``str``.
        ValueError: A name or a value cannot stand in a request.
    """
    if headers is None:
        return None
    expected = "additional_headers must be a mapping of str to str, or an iterable of such pairs"
    if isinstance(headers, (str, bytes)):
        raise TypeError(f"{expected}, not {type(headers).__name__}")
    try:
        if isinstance(headers, Headers):
            return headers.copy()
        pairs = (
            list(headers)
            if isinstance(headers, Iterable) and not isinstance(headers, Mapping)
            else [(name, headers[name]) for name in headers.keys()]  # noqa: SIM118 - it need not be iterable
        )
        if not all(isinstance(name, str) and isinstance(value, str) for name, value in pairs):
            raise TypeError
        return Headers(pairs)
    except InvalidHeader as exc:
        raise ValueError(f"additional_headers: {exc}") from None
    except (TypeError, ValueError, AttributeError):
        raise TypeError(f"{expected}, not {type(headers).__name__}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """The keyword arguments that tell how to reach a server. Their names are those of ``connect`` and ``unix_connect``.

    Attributes:
        unix: Whether the socket is a Unix socket.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    unix: bool = False
    path: PathLike | None = None
    sock: socket.socket | None = None
    ssl: TLS | ssl_module.SSLContext | bool | None = None
    server_hostname: str | None = None
    host: str | None = None
    port: int | None = None
    local_addr: tuple[str, int] | None = None
    family: int = 0
    happy_eyeballs_delay: float | None = HAPPY_EYEBALLS_DELAY
    proxy: str | Literal[True] | None = True
    proxy_ssl: TLS | ssl_module.SSLContext | bool | None = None
    proxy_server_hostname: str | None = None

    def __post_init__(self) -> None:
        _check_type("sock", self.sock, socket.socket, "a socket.socket or None")
        if isinstance(self.sock, ssl_module.SSLSocket):
            # The core would read and write behind the back of its TLS.
            raise TypeError("sock must be a plain socket, not an SSLSocket; use a wss:// URI and the ssl argument")
        for name in ("ssl", "proxy_ssl"):
            expected = (bool, TLS, ssl_module.SSLContext)
            _check_type(name, getattr(self, name), expected, "True, a TLS, an ssl.SSLContext or None")
        for name in ("server_hostname", "proxy_server_hostname", "host"):
            _check_type(name, getattr(self, name), str, "a str or None")
        for name, most in (("port", 2**16), ("family", 2**31)):
            value = getattr(self, name)
            _check_type(name, value, int, "an int")
            if isinstance(value, int) and not 0 <= value < most:
                raise ValueError(f"{name} must be at least 0 and less than {most}")
        _check_seconds("happy_eyeballs_delay", self.happy_eyeballs_delay)
        if self.local_addr is not None and not (isinstance(self.local_addr, tuple) and len(self.local_addr) == 2):
            raise TypeError(f"local_addr must be a pair of host and port, not {type(self.local_addr).__name__}")
        if self.proxy is not True:
            _check_type("proxy", self.proxy, str, "True, a str or None")
        if self.unix and self.path is None and self.sock is None:
            raise ValueError("path is missing")
        if self.unix and self.path is not None and self.sock is not None:
            raise ValueError("path and sock exclude each other")

    def chain(self, uri: str, headers: Headers | None) -> RedirectChain:
        """Return the chain that begins with a URI.

        Args:
            uri: What the user passed.
            headers: Headers to add to the request.

        Raises:
            InvalidURI: It is not a WebSocket URI.
        """
        return RedirectChain(
            uri,
            headers,
            sock=self.sock is not None,
            unix=self.unix,
            address=self.host is not None or self.port is not None,
        )
