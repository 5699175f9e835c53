"""The keyword arguments of clients, checked once for both APIs. It opens no connection."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from .._lazy import ssl as ssl_module
from .._native import ClientPlan, ClientTLS, system_authorities
from .._net.addresses import HAPPY_EYEBALLS_DELAY
from .._net.proxy import basic_authorization
from .._net.uri import RedirectChain, WebSocketURI
from ..datastructures import Headers, HeadersLike
from ..exceptions import InvalidHeader
from ..tls import TLS
from ..typing import LoggerLike, PathLike
from .common import AsyncOptions, ConnectionOptions, bounded, cached, check_seconds, check_type

if TYPE_CHECKING:
    from .._native_types import ConnectOptions

__all__ = [
    "PLAIN",
    "AsyncClientOptions",
    "ClientOptions",
    "Network",
    "check_headers",
    "checked_async_options",
    "checked_network",
    "checked_options",
    "native_tls",
]

_LOGGER = logging.getLogger("wirespeed.client")


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class ClientOptions(ConnectionOptions):
    """Keyword arguments of ``connect`` that do not depend on the server, with the same names.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    origin: str | None = None
    user_agent_header: str | None = None
    # The last URI without headers, and its request: most programs connect to one URI.
    _last: tuple[WebSocketURI, ClientPlan] | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in ("origin", "user_agent_header"):
            check_type(name, getattr(self, name), str, "a str or None")
        super().__post_init__()

    @property
    def effective_logger(self) -> LoggerLike:
        """The logger to use: the one given, or ``wirespeed.client``."""
        return _LOGGER if self.logger is None else self.logger

    def request(self, uri: WebSocketURI, headers: Headers | None) -> ClientPlan:
        """Return the request for one attempt in native form, after the native core has checked it.

        Args:
            uri: URI of the server.
            headers: Headers to add to the request.

        Raises:
            TypeError, ValueError: The request is not valid.
        """
        last = self._last
        if headers is None and last is not None and last[0] is uri:
            return last[1]
        request = ClientPlan(self._native(uri, headers))
        # Queries and user information may contain secrets, so they are not kept after the attempt.
        if headers is None and not uri.query and uri.user_info is None:
            self._last = uri, request
        return request

    def _native(self, uri: WebSocketURI, headers: Headers | None) -> ConnectOptions:
        authorization = None
        # RFC 7617: send user information of the URI as Basic authentication, unless there is an Authorization header.
        if uri.user_info is not None and (headers is None or "Authorization" not in headers):
            authorization = basic_authorization(*uri.user_info)
        return {
            "host": uri.host_header,
            "target": uri.resource_name,
            "origin": self.origin,
            "user_agent": self.user_agent_header,
            "authorization": authorization,
            "headers": [] if headers is None else list(headers.raw_items()),
            **self.shared_settings(),
        }


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class AsyncClientOptions(AsyncOptions, ClientOptions):
    """Keyword arguments of the asyncio ``connect`` that do not depend on the server.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    listener: object | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.listener, type):
            raise TypeError(f"listener must be an object, not a class; write {self.listener.__name__}()")
        if self.zero_copy and self.listener is None:
            raise ValueError("zero_copy needs a listener: what recv() returns must stay valid")


def native_tls(tls: TLS) -> ClientTLS:
    """Return the native form of TLS settings. Equal settings share it, and with it sessions to resume.

    Args:
        tls: The settings. Their files are read again if they have changed.
    """
    # The content of the system's certificate files is a part of the cache key.
    authorities = system_authorities() if tls._trusts_system and tls.verify is not False else 0
    # As ssl.create_default_context() does.
    key_log = None if sys.flags.ignore_environment else os.environ.get("SSLKEYLOGFILE")
    now = tls._current_stamp()
    if now != (tls._renewed or tls)._stamp:
        try:
            newer = dataclasses.replace(tls)
            native = _make_tls(newer, authorities, key_log)
        except (OSError, ValueError) as exc:
            if now != tls._unusable:
                _LOGGER.warning("files of TLS have changed and cannot be used, what they had before stays: %s", exc)
            tls._set(_unusable=now)
        else:
            tls._set(_renewed=newer)
            return native
    return _make_tls(tls._renewed or tls, authorities, key_log)


# Enough for the different settings of an application; each entry keeps some kilobytes of certificates.
@functools.lru_cache(maxsize=64)
def _make_tls(tls: TLS, _authorities: int, key_log: str | None) -> ClientTLS:
    return ClientTLS(**tls._native_arguments(), key_log=bool(key_log))


def check_headers(headers: HeadersLike | None) -> Headers | None:
    """Return the ``additional_headers`` of the user as :class:`Headers`, in a new object.

    Args:
        headers: The argument of the user.

    Raises:
        TypeError: It is neither a mapping nor an iterable of pairs of ``str``.
        ValueError: A name or a value is not allowed in a request.
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
            else [(name, headers[name]) for name in headers.keys()]  # noqa: SIM118 - it may not be iterable
        )
        if not all(isinstance(name, str) and isinstance(value, str) for name, value in pairs):
            raise TypeError
        return Headers(pairs)
    except InvalidHeader as exc:
        raise ValueError(f"additional_headers: {exc}") from None
    except (TypeError, ValueError, AttributeError):
        raise TypeError(f"{expected}, not {type(headers).__name__}") from None


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Network:
    """Keyword arguments of ``connect`` and ``unix_connect`` that tell how to reach a server, with the same names.

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
        check_type("sock", self.sock, socket.socket, "a socket.socket or None")
        if self.sock is not None and isinstance(self.sock, ssl_module.SSLSocket):
            # The core would read and write below the TLS layer of the object.
            raise TypeError("sock must be a plain socket, not an SSLSocket; use a wss:// URI and the ssl argument")
        for name in ("ssl", "proxy_ssl"):
            if not isinstance(value := getattr(self, name), (bool, TLS, type(None))):
                check_type(name, value, ssl_module.SSLContext, "True, a TLS, an ssl.SSLContext or None")
        for name in ("server_hostname", "proxy_server_hostname", "host"):
            check_type(name, getattr(self, name), str, "a str or None")
        for name, most in (("port", 2**16), ("family", 2**31)):
            value = getattr(self, name)
            check_type(name, value, int, "an int")
            if isinstance(value, int) and not 0 <= value < most:
                raise ValueError(f"{name} must be at least 0 and less than {most}")
        check_seconds("happy_eyeballs_delay", self.happy_eyeballs_delay)
        self.happy_eyeballs_delay = bounded(self.happy_eyeballs_delay)
        if self.local_addr is not None and not (isinstance(self.local_addr, tuple) and len(self.local_addr) == 2):
            raise TypeError(f"local_addr must be a pair of host and port, not {type(self.local_addr).__name__}")
        if self.proxy is not True:
            check_type("proxy", self.proxy, str, "True, a str or None")
        if self.unix and self.path is None and self.sock is None:
            raise ValueError("path is missing")
        if self.unix and self.path is not None and self.sock is not None:
            raise ValueError("path and sock exclude each other")

    def address(self, uri: WebSocketURI) -> tuple[str, int]:
        """Return host and port to connect to, directly or through a proxy.

        Args:
            uri: URI of the server; the arguments ``host`` and ``port`` have precedence.
        """
        return self.host or uri.host, self.port or uri.port

    def chain(self, uri: str, headers: Headers | None) -> RedirectChain:
        """Return a redirect chain that begins with a URI.

        Args:
            uri: The argument of the user.
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


PLAIN = (bool, int, float, type(None))
"""Types of immutable arguments that contain no secrets."""

# Not `str` for Network: its arguments may contain the password of a proxy.
checked_options = cached(ClientOptions, (*PLAIN, str))
checked_async_options = cached(AsyncClientOptions, (*PLAIN, str))
checked_network = cached(Network, PLAIN)
