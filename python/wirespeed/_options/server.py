"""The keyword arguments of servers, checked once for both APIs. It accepts no connection."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .._lazy import ssl as ssl_module
from .._native import ServerSettings, ServerTLS, origin_problem
from ..datastructures import Headers
from ..exceptions import InvalidHeader, InvalidOrigin, ProtocolError
from ..tls import TLS
from ..typing import LoggerLike
from .common import AsyncOptions, ConnectionOptions, check_count, check_type
from .compression import Deflate

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "AsyncServerOptions",
    "ServerOptions",
    "ServerSSL",
    "check_close_frame",
    "check_ssl",
    "check_tls",
    "native_server_tls",
]


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class ServerOptions(ConnectionOptions):
    """Keyword arguments of ``serve`` that do not depend on the address, with the same names.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    origins: Sequence[str | re.Pattern[str] | None] | None = None
    select_subprotocol: Callable[..., Any] | None = None
    process_request: Callable[..., Any] | None = None
    process_response: Callable[..., Any] | None = None
    server_header: str | None = None
    max_pending: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.origins is not None:
            if isinstance(self.origins, (str, bytes)) or not isinstance(self.origins, Sequence):
                raise TypeError(f"origins must be a list, not {type(self.origins).__name__}")
            for origin in self.origins:
                check_type("origins", origin, (str, re.Pattern), "a list of str, compiled patterns and None")
                if isinstance(origin, re.Pattern) and not isinstance(origin.pattern, str):
                    raise TypeError("origins must be patterns for str, not for bytes")
                if isinstance(origin, str):
                    _check_origin(origin)
        for name in ("select_subprotocol", "process_request", "process_response"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be callable, not {type(value).__name__}")
        check_type("server_header", self.server_header, str, "a str or None")
        if self.server_header is not None:
            try:
                Headers({"Server": self.server_header})
            except InvalidHeader as exc:
                raise ValueError(f"server_header: {exc}") from None
        check_count("max_pending", self.max_pending)
        if not self.max_pending:
            raise ValueError("max_pending must be at least 1")

    @classmethod
    def of_unix(cls, **options: Any) -> Self:
        """Return the options of ``unix_serve``.

        Args:
            **options: The keyword arguments of the user.

        Raises:
            TypeError: One has a wrong type, or is unknown.
            ValueError: One has a wrong value.
        """
        known = {field.name for field in dataclasses.fields(cls) if field.init}
        for name in options:
            if name not in known:
                raise TypeError(f"unix_serve() got an unexpected keyword argument {name!r}")
        return cls(**options)

    def _compression(self) -> Deflate | str | None:
        # Like the websockets library: windows of 4 KiB, to save memory.
        if self.compression == "deflate":
            return Deflate(server_max_window_bits=12, client_max_window_bits=12)
        return self.compression

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

    def native(self) -> ServerSettings:
        """Return the options in the form of the native core."""
        return ServerSettings(**self.shared_settings())

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


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class AsyncServerOptions(AsyncOptions, ServerOptions):
    """Keyword arguments of the asyncio ``serve`` that do not depend on the address.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument has a wrong value.
    """

    listener: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.listener is not None and not callable(self.listener):
            raise TypeError("listener must be a class, or a function, that makes a listener for each connection")
        if self.zero_copy and self.listener is None:
            raise ValueError("zero_copy needs a listener: what recv() returns must stay valid")


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
