"""The options of clients, for both APIs. It opens no connection."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket as socket_module
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._lazy import ssl as ssl_module
from .._native import ClientPlan, ClientTLS, NativeClientOptions, system_authorities
from .._net.addresses import HAPPY_EYEBALLS_DELAY
from .._net.proxy import basic_authorization
from .._net.uri import RedirectChain, WebSocketURI
from .._version import USER_AGENT
from ..datastructures import Headers, HeadersLike
from ..exceptions import InvalidHeader
from ..tls import TLS
from ..typing import LoggerLike, PathLike
from .common import QUEUE_BYTES, OptionsBase, check_io_backend, check_logger, check_type
from .hints import unexpected_argument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from ..typing import Origin, Self, Subprotocol
    from .compression import Deflate

__all__ = ["AsyncClientOptions", "ClientOptions", "check_headers", "native_tls"]

_LOGGER = logging.getLogger("wirespeed.client")

# Immutable values that keep no other object alive and contain no secrets.
_PLAIN = frozenset((bool, int, float, type(None)))

_CACHE: dict[tuple[object, ...], Any] = {}

# Enough for the different calls of an application.
_MAX_CACHED = 32


class ClientOptions(OptionsBase):
    """The options of the blocking ``connect`` and ``unix_connect``, as attributes with the same names.

    Args:
        options: The options by name; others have their defaults.

    Attributes:
        unix: Whether the socket is a Unix socket.
        path: Path of the Unix socket, ``None`` for the socket in ``sock``.
        native: The options in native form.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: An option has a wrong value.
    """

    # Generated from table.py
    sock: socket_module.socket | None = None
    ssl: TLS | ssl_module.SSLContext | bool | None = None
    server_hostname: str | None = None
    host: str | None = None
    port: int | None = None
    local_addr: tuple[str, int] | None = None
    family: int = 0
    happy_eyeballs_delay: float | None = HAPPY_EYEBALLS_DELAY
    origin: Origin | str | None = None
    subprotocols: Sequence[Subprotocol | str] | None = None
    compression: Deflate | str | None = "deflate"
    additional_headers: HeadersLike | None = None
    user_agent_header: str | None = USER_AGENT
    proxy: str | Literal[True] | None = True
    proxy_ssl: TLS | ssl_module.SSLContext | bool | None = None
    proxy_server_hostname: str | None = None
    open_timeout: float | None = 10
    ping_interval: float | None = 20
    ping_timeout: float | None = 20
    close_timeout: float | None = 10
    max_size: int | tuple[int | None, int | None] | None = 2**20
    max_fragments: int | None = 4096
    max_queue: int | tuple[int | None, int | None] | None = 16
    logger: LoggerLike | None = None
    create_connection: Callable[..., Any] | None = None
    # End of the generated lines

    unix: bool = False
    path: PathLike | None = None
    _on_event_loop = False
    # The last URI without headers, and its request: most programs connect to one URI.
    _kept_request: tuple[WebSocketURI, ClientPlan] | None = None

    def __init__(self, options: Mapping[str, Any]) -> None:
        # Programs open many connections, most of them with none of these options.
        super().__init__(options)
        if not (
            self.sock is None
            and self.ssl is None
            and self.proxy_ssl is None
            and self.local_addr is None
            and self.logger is None
            and self.create_connection is None
            and (self.proxy is True or self.proxy is None)
            and not self.unix
        ):
            self._check()
        native = self.native = NativeClientOptions(self, self._on_event_loop)
        # Very long timeouts are none.
        self.open_timeout, self.happy_eyeballs_delay = native.open_timeout, native.happy_eyeballs_delay

    @classmethod
    def cached(cls, function: str, options: Mapping[str, Any], known: type) -> Self:
        """Return the options of a call: those of an earlier call, if all are equal, and numbers, ``bool`` or ``None``.

        Making them takes longer than everything else in the library that a call of ``connect`` does.

        Args:
            function: Public name of the function.
            options: Its keyword arguments.
            known: The ``TypedDict`` of its keyword arguments.

        Raises:
            TypeError: There is no such option, or one has a wrong type.
            ValueError: An option has a wrong value.
        """
        values = tuple(options.values())
        # The types are a part of the key, because 1 and True are equal.
        types = tuple(map(type, values))
        key = (cls, *options, *types, *values) if _PLAIN.issuperset(types) else None
        made = None if key is None else _CACHE.get(key)
        if made is None:
            if unknown := [name for name in options if name not in known.__annotations__]:
                raise unexpected_argument(function, unknown, known.__annotations__)
            made = cls(options)
            if key is not None:
                if len(_CACHE) >= _MAX_CACHED:
                    _CACHE.clear()
                _CACHE[key] = made
        return made

    def _check(self) -> None:
        if self.sock is not None:
            check_type("sock", self.sock, socket_module.socket, "a socket.socket or None")
            if isinstance(self.sock, ssl_module.SSLSocket):
                # The core would read and write below the TLS layer of the object.
                raise TypeError("sock must be a plain socket, not an SSLSocket; use a wss:// URI and the ssl argument")
        for name, ssl in ("ssl", self.ssl), ("proxy_ssl", self.proxy_ssl):
            if ssl is not None and not isinstance(ssl, (bool, TLS)):
                check_type(name, ssl, ssl_module.SSLContext, "True, a TLS, an ssl.SSLContext or None")
        if self.local_addr is not None and not (isinstance(self.local_addr, tuple) and len(self.local_addr) == 2):
            raise TypeError(f"local_addr must be a pair of host and port, not {type(self.local_addr).__name__}")
        if self.proxy is not True:
            check_type("proxy", self.proxy, str, "True, a str or None")
        if self.unix and (self.path is None) == (self.sock is None):
            raise ValueError("path is missing" if self.path is None else "path and sock exclude each other")
        check_logger(self.logger)
        if self.create_connection is not None and not callable(self.create_connection):
            raise TypeError(f"create_connection must be a class, not {type(self.create_connection).__name__}")

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
        kept = self._kept_request
        if headers is None and kept is not None and kept[0] is uri:
            return kept[1]
        authorization = None
        # RFC 7617: send user information of the URI as Basic authentication, unless there is an Authorization header.
        if uri.user_info is not None and (headers is None or "Authorization" not in headers):
            authorization = basic_authorization(*uri.user_info)
        fields = [] if headers is None else list(headers.raw_items())
        request = ClientPlan(self.native, uri.host_header, uri.resource_name, authorization, fields)
        # Queries and user information may contain secrets, so they are not kept after the attempt.
        if headers is None and not uri.query and uri.user_info is None:
            self._kept_request = uri, request
        return request

    def address(self, uri: WebSocketURI) -> tuple[str, int]:
        """Return host and port to connect to, directly or through a proxy.

        Args:
            uri: URI of the server; the options ``host`` and ``port`` have precedence.
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


class AsyncClientOptions(ClientOptions):
    """The options of the asyncio ``connect`` and ``unix_connect``, except those that concern reconnecting.

    Args:
        options: The options by name; others have their defaults.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: An option has a wrong value.
    """

    # Generated from table.py
    max_queue_bytes: int | None = QUEUE_BYTES
    write_limit: int | tuple[int, int | None] = 2**15
    coalesce: bool = True
    yield_after: int = 1024
    io_backend: Literal["fd", "transport"] | None = None
    listener: object | None = None
    zero_copy: bool = False
    # End of the generated lines

    _on_event_loop = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if self.io_backend is not None:
            check_io_backend(self.io_backend)
        if isinstance(self.listener, type):
            raise TypeError(f"listener must be an object, not a class; write {self.listener.__name__}()")


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
