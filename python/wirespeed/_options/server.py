"""The options of servers, for both APIs. It accepts no connection."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import socket as socket_module
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._lazy import ssl as ssl_module
from .._native import NativeServerOptions, ServerTLS, origin_problem
from .._version import SERVER
from ..datastructures import Headers
from ..exceptions import InvalidHeader, InvalidOrigin, ProtocolError
from ..tls import TLS
from ..typing import LoggerLike
from .common import QUEUE_BYTES, OptionsBase, check_io_backend, check_logger, check_type

if TYPE_CHECKING:
    from typing import Literal

    from ..typing import Origin, Subprotocol
    from .compression import Deflate

__all__ = [
    "AsyncServerOptions",
    "ServerOptions",
    "ServerSSL",
    "check_close_frame",
    "check_ssl",
    "check_tls",
    "native_server_tls",
]


class ServerOptions(OptionsBase):
    """The options of the blocking ``serve`` and ``unix_serve``, as attributes with the same names.

    Args:
        options: The options by name; others have their defaults.

    Attributes:
        native: The options in native form.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: An option has a wrong value.
    """

    # Generated from table.py
    sock: socket_module.socket | None = None
    ssl: TLS | ssl_module.SSLContext | None = None
    family: int = 0
    flags: int = socket_module.AI_PASSIVE
    backlog: int = 4096
    reuse_address: bool | None = None
    reuse_port: bool | None = None
    subprotocols: Sequence[Subprotocol | str] | None = None
    compression: Deflate | str | None = "deflate"
    origins: Sequence[Origin | str | re.Pattern[str] | None] | None = None
    select_subprotocol: Callable[..., Any] | None = None
    process_request: Callable[..., Any] | None = None
    process_response: Callable[..., Any] | None = None
    server_header: str | None = SERVER
    open_timeout: float | None = 10
    ping_interval: float | None = 20
    ping_timeout: float | None = 20
    close_timeout: float | None = 10
    max_size: int | tuple[int | None, int | None] | None = 2**20
    max_fragments: int | None = 4096
    max_queue: int | tuple[int | None, int | None] | None = 16
    max_pending: int = 1024
    logger: LoggerLike | None = None
    create_connection: Callable[..., Any] | None = None
    # End of the generated lines

    _on_event_loop = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if self.origins is not None:
            _check_origins(self.origins)
        for name in ("select_subprotocol", "process_request", "process_response"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be callable, not {type(value).__name__}")
        if self.create_connection is not None and not callable(self.create_connection):
            raise TypeError(f"create_connection must be a class, not {type(self.create_connection).__name__}")
        check_logger(self.logger)
        self.native = NativeServerOptions(self, self._on_event_loop)
        # Very long timeouts are none.
        self.open_timeout = self.native.open_timeout
        if self.server_header is not None:
            try:
                Headers({"Server": self.server_header})
            except InvalidHeader as exc:
                raise ValueError(f"server_header: {exc}") from None

    @property
    def effective_logger(self) -> LoggerLike:
        """The logger to use: the one given, or ``wirespeed.server``."""
        return logging.getLogger("wirespeed.server") if self.logger is None else self.logger

    @functools.cached_property
    def has_hooks(self) -> bool:
        """Whether the application decides about requests: by hooks, origins or its own choice of a subprotocol."""
        return not (
            self.origins is None
            and self.select_subprotocol is None
            and self.process_request is None
            and self.process_response is None
        )

    def check_origin(self, headers: Headers) -> None:
        """Raise InvalidOrigin unless the Origin header of a request is allowed (RFC 6455, section 10.2).

        Args:
            headers: Headers of the request.
        """
        if self.origins is None:
            return
        values = headers.get_all("Origin")
        if len(values) > 1:
            raise InvalidOrigin(", ".join(values))
        origin = values[0] if values else None
        for allowed in self.origins:
            if origin is None or allowed is None:
                if origin is allowed:
                    return
            elif allowed == origin if isinstance(allowed, str) else allowed.fullmatch(origin):
                return
        raise InvalidOrigin(origin)


def _check_origins(origins: object) -> None:
    if isinstance(origins, (str, bytes)) or not isinstance(origins, Sequence):
        raise TypeError(f"origins must be a list, not {type(origins).__name__}")
    for origin in origins:
        check_type("origins", origin, (str, re.Pattern), "a list of str, compiled patterns and None")
        if isinstance(origin, re.Pattern) and not isinstance(origin.pattern, str):
            raise TypeError("origins must be patterns for str, not for bytes")
        if isinstance(origin, str):
            _check_origin(origin)


def _check_origin(origin: str) -> None:
    if "*" in origin:
        problem: str | None = "there are no wildcards: use a pattern of re"
    else:
        problem = origin_problem(origin)
    if problem is not None:
        raise ValueError(
            f"origins: {origin!r} can never match: {problem}; an origin looks like https://example.com or "
            "http://localhost:8000"
        )


class AsyncServerOptions(ServerOptions):
    """The options of the asyncio ``serve`` and ``unix_serve``.

    Args:
        options: The options by name; others have their defaults.

    Raises:
        TypeError: An option has a wrong type.
        ValueError: An option has a wrong value.
    """

    # Generated from table.py
    start_serving: bool = True
    max_queue_bytes: int | None = QUEUE_BYTES
    write_limit: int | tuple[int, int | None] = 2**15
    coalesce: bool = True
    yield_after: int = 1024
    io_backend: Literal["fd", "transport"] | None = None
    listener: Callable[[], object] | None = None
    zero_copy: bool = False
    # End of the generated lines

    _on_event_loop = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        check_io_backend(self.io_backend)
        if self.listener is not None and not callable(self.listener):
            raise TypeError("listener must be a class, or a function, that makes a listener for each connection")


def check_ssl(ssl: object) -> None:
    """Raise TypeError or ValueError unless the argument is a TLS configuration for servers.

    Args:
        ssl: The argument of the user.
    """
    if ssl is None:
        return
    check_type("ssl", ssl, (TLS, ssl_module.SSLContext), "a TLS, an ssl.SSLContext or None")
    if isinstance(ssl, TLS):
        check_tls(ssl)
    elif isinstance(ssl, ssl_module.SSLContext) and ssl.protocol == ssl_module.PROTOCOL_TLS_CLIENT:
        raise ValueError(
            "ssl: this context is for clients; make it with ssl.create_default_context(Purpose.CLIENT_AUTH)"
        )


def check_tls(tls: TLS) -> None:
    """Raise ValueError unless TLS settings are usable for a server.

    Args:
        tls: The settings.
    """
    if tls.cert is None:
        raise ValueError("ssl: a server needs a certificate; pass TLS(cert=..., key=...)")
    if (tls.verify or tls.system_roots) and not tls._ca_pem:
        raise ValueError(
            "ssl: a server verifies its clients by the authorities in ca, and there are none; pass TLS(ca=..., ...), "
            "or leave out verify and system_roots to let in clients without certificates"
        )


def native_server_tls(tls: TLS) -> ServerTLS:
    """Return the native form of TLS settings for a server.

    Args:
        tls: The settings. If ``ca`` has authorities, clients need a certificate of one of them.
    """
    arguments = tls._native_arguments()
    return ServerTLS(
        client_ca=arguments["ca_pem"] if arguments["verify"] else [],
        cert_pem=arguments["cert_pem"] or b"",
        key_pem=arguments["key_pem"] or b"",
        alpn=arguments["alpn"],
        min_version=arguments["min_version"],
        max_version=arguments["max_version"],
    )


class ServerSSL:
    """The TLS settings of a server, which can be replaced while it runs.

    Args:
        ssl: The argument of the user.

    Attributes:
        native: The settings in native form; ``None`` for no TLS.

    Raises:
        TypeError: It is not a TLS configuration.
        ValueError: It is not a TLS configuration for servers.
    """

    def __init__(self, ssl: TLS | ssl_module.SSLContext | None) -> None:
        check_ssl(ssl)
        self._ssl = ssl
        self.native: ServerTLS | ssl_module.SSLContext | None = _native(ssl)

    def reload(self, ssl: TLS | ssl_module.SSLContext | None) -> None:
        """Use other settings from now on.

        Args:
            ssl: The settings; ``None`` to read the files of the current :class:`wirespeed.TLS` again.

        Raises:
            OSError: A file cannot be read. The old settings stay in use.
            TypeError: There is no TLS, or ``ssl`` is ``None`` and the current settings are an ``ssl.SSLContext``.
            ValueError: The settings are wrong. The old settings stay in use.
        """
        if self._ssl is None:
            raise TypeError("this server has no TLS: pass ssl to serve()")
        if ssl is None:
            if not isinstance(self._ssl, TLS):
                raise TypeError("an ssl.SSLContext cannot be read again; call its load_cert_chain, or pass ssl")
            ssl = dataclasses.replace(self._ssl)
        check_ssl(ssl)
        self._ssl, self.native = ssl, _native(ssl)


def _native(ssl: TLS | ssl_module.SSLContext | None) -> ServerTLS | ssl_module.SSLContext | None:
    return native_server_tls(ssl) if isinstance(ssl, TLS) else ssl


def check_close_frame(code: object, reason: object) -> None:
    """Raise unless a server may send a close frame with this code and reason (RFC 6455, section 7.4).

    Args:
        code: Close code.
        reason: Close reason.

    Raises:
        ProtocolError: The code or the reason is not allowed in a close frame.
        TypeError: An argument has a wrong type.
    """
    if not isinstance(code, int) or isinstance(code, bool):
        raise TypeError(f"code must be an int, not {type(code).__name__}")
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, not {type(reason).__name__}")
    if not (1000 <= code <= 1014 or 3000 <= code <= 4999) or code in (1004, 1006):
        raise ProtocolError(f"close code {int(code)} must not be sent")
    if len(reason.encode()) > 123:
        raise ProtocolError("close reason is longer than 123 bytes of UTF-8")
