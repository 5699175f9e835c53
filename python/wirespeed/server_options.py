"""The keyword arguments of servers: checked here, once, for every kind of server, and what follows from them.

It accepts no connection.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import ssl as ssl_module
from collections.abc import Callable, Sequence
from typing import Any

from ._native import ServerSettings, ServerTLS
from .compression import Deflate
from .connection_options import AsyncOptions, ConnectionOptions, check_count, check_type
from .datastructures import Headers
from .exceptions import InvalidOrigin
from .tls import TLS
from .typing import LoggerLike

__all__ = ["AsyncServerOptions", "ServerOptions", "check_ssl", "native_server_tls"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions(ConnectionOptions):
    """Keyword arguments that do not depend on where a server listens. Their names are those of ``serve``.

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
        for name in ("select_subprotocol", "process_request", "process_response"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be callable, not {type(value).__name__}")
        check_type("server_header", self.server_header, str, "a str or None")
        if self.server_header is not None:
            Headers({"Server": self.server_header})  # raises for what cannot be sent
        check_count("max_pending", self.max_pending)
        if not self.max_pending:
            raise ValueError("max_pending must be at least 1")

    def _compression(self) -> Deflate | str | None:
        # As the websockets library: windows of 4 KiB, for the sake of memory.
        if self.compression == "deflate":
            return Deflate(server_max_window_bits=12, client_max_window_bits=12)
        return self.compression

    @property
    def effective_logger(self) -> LoggerLike:
        """The logger to use: the one given, or ``wirespeed.server``."""
        return logging.getLogger("wirespeed.server") if self.logger is None else self.logger

    @property
    def has_hooks(self) -> bool:
        """Whether the application has a say in the opening handshake."""
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
        """Raise InvalidOrigin unless a request comes from where it may: RFC 6455, section 10.2.

        Args:
            headers: Those of the request.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsyncServerOptions(AsyncOptions, ServerOptions):
    """The same for a server on an event loop, with what only such servers have.

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
    """Raise TypeError or ValueError for what is no TLS configuration of a server.

    Args:
        ssl: What the user passed.
    """
    check_type("ssl", ssl, (TLS, ssl_module.SSLContext), "a TLS, an ssl.SSLContext or None")
    if isinstance(ssl, TLS) and ssl.cert is None:
        raise ValueError("ssl: a server needs a certificate; pass TLS(cert=..., key=...)")


def native_server_tls(tls: TLS) -> ServerTLS:
    """Return the native form of the TLS settings of a server.

    Args:
        tls: The settings. Clients need a certificate of one of the authorities in ``ca``, if there are any.
    """
    arguments = tls._native_arguments()
    return ServerTLS(
        client_ca=arguments["ca_pem"] if tls.verify else [],
        cert_pem=arguments["cert_pem"] or b"",
        key_pem=arguments["key_pem"] or b"",
        alpn=arguments["alpn"],
        min_version=arguments["min_version"],
        max_version=arguments["max_version"],
    )
