"""The blocking client API of websockets, on connections of this package."""

from __future__ import annotations

import socket
import ssl as ssl_module
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from ...._options.client import ClientOptions
from ....sync._client import open_connection
from ....sync._connection import ClientConnection as _ClientConnection
from ....sync._dial import dial
from ....typing import LoggerLike, Origin, PathLike, Subprotocol
from .. import _heads as heads
from .._client import Chain, Connecting, local_uri, options_with_chain
from .._installed import private
from .._settings import MAX_FRAGMENTS, not_negative, reject
from .._views import ProtocolView
from ..client import backoff, process_exception
from ..extensions.permessage_deflate import deflate_of
from ..http11 import USER_AGENT
from .connection import Connection

__all__ = ["connect", "unix_connect", "reconnect", "unix_reconnect", "ClientConnection"]


class ClientConnection(Connection, _ClientConnection):
    """The connection of a client; see :class:`wirespeed.sync.ClientConnection`."""


class reconnect(Connecting):  # noqa: N801 - as websockets
    """Connect to a WebSocket server. Use it as a context manager, or iterate over it to reconnect.

    Arguments are those of ``websockets.sync.client.reconnect``; :func:`wirespeed.sync.connect` explains most of them.
    """

    def __init__(
        self,
        uri: str,
        *,
        # TCP and TLS
        sock: socket.socket | None = None,
        ssl: ssl_module.SSLContext | None = None,
        server_hostname: str | None = None,
        # WebSocket
        origin: Origin | None = None,
        extensions: Sequence[Any] | None = None,
        subprotocols: Sequence[Subprotocol] | None = None,
        compression: str | None = "deflate",
        # HTTP
        additional_headers: Any = None,
        user_agent_header: str | None = USER_AGENT,
        proxy: str | Literal[True] | None = True,
        proxy_ssl: ssl_module.SSLContext | None = None,
        proxy_server_hostname: str | None = None,
        process_exception: Callable[[Exception], Exception | None] = process_exception,
        # Timeouts
        open_timeout: float | None = 10,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float | None = 10,
        reconnect_delays: Callable[[], Generator[float, None, None]] = backoff,
        # Limits
        max_size: int | tuple[int | None, int | None] | None = 2**20,
        max_queue: int | tuple[int | None, int | None] | None = 16,
        # Logging
        logger: LoggerLike | None = None,
        # Escape hatch
        create_connection: Callable[..., ClientConnection] | None = None,
        # For socket.create_connection
        **kwargs: Any,
    ) -> None:
        if ssl is None and "ssl_context" in kwargs:
            ssl = kwargs.pop("ssl_context")
            warnings.warn("ssl_context was renamed to ssl", DeprecationWarning, stacklevel=2)
        self._check(uri, ssl, subprotocols, logger, create_connection)
        self.sock = sock
        self.ssl = ssl
        self.server_hostname = server_hostname
        self.additional_headers = additional_headers
        self.user_agent_header = user_agent_header
        self.proxy = proxy
        self.proxy_ssl = proxy_ssl
        self.proxy_server_hostname = proxy_server_hostname
        self.process_exception = process_exception
        self.open_timeout = open_timeout
        self.reconnect_delays = reconnect_delays
        self.create_connection: Any = create_connection or ClientConnection
        self.open_socket_kwargs = kwargs
        self.connection_kwargs: dict[str, Any] = {
            "ping_interval": ping_interval,
            "ping_timeout": ping_timeout,
            "close_timeout": close_timeout,
            "max_queue": max_queue,
        }
        self._max_size = max_size
        self._options: dict[str, Any] = {
            "origin": origin,
            "subprotocols": subprotocols,
            "compression": deflate_of(extensions, compression),
            "max_size": max_size,
            "max_fragments": MAX_FRAGMENTS,
            "logger": self.logger,
            **self.connection_kwargs,
            "close_timeout": not_negative(close_timeout),
        }

    def _make(self, opened: Any, **native: Any) -> Any:
        name = self._verified_name(self.server_hostname)
        view = ProtocolView(opened, native, True, self._max_size, name)
        view.uri = self.ws_uri
        return self.create_connection(None, view, **self.connection_kwargs)

    def _chain(self) -> Chain:
        kwargs = self.open_socket_kwargs
        return Chain(
            self,
            sock=self.sock is not None,
            unix=kwargs.get("unix", False),
            address=kwargs.get("address") is not None,
        )

    def _network(self) -> dict[str, Any]:
        kwargs = dict(self.open_socket_kwargs)
        unix, path, address = kwargs.pop("unix", False), kwargs.pop("path", None), kwargs.pop("address", None)
        source, limit = kwargs.pop("source_address", None), kwargs.pop("timeout", None)
        if kwargs.pop("all_errors", False):
            raise NotImplementedError("wirespeed raises one exception for all addresses, which names them")
        reject(kwargs, "connect")
        network: dict[str, Any] = {"sock": self.sock, "ssl": self.ssl, "server_hostname": self.server_hostname}
        if unix:
            return {"unix": True, "path": path, **network}
        network |= {"proxy_ssl": self.proxy_ssl, "proxy_server_hostname": self.proxy_server_hostname}
        if self.sock is not None:
            return network
        if limit is not None and self.proxy is None:
            to = (self.ws_uri.host, self.ws_uri.port) if address is None else address
            local: Any = None if source is None else tuple(source)
            network["sock"] = dial(*to, deadline=time.monotonic() + limit, local_addr=local)
            return network
        if address is not None:
            network["host"], network["port"] = address
        return {"proxy": self.proxy, "local_addr": None if source is None else tuple(source), **network}

    def connect(self) -> ClientConnection:
        """Connect once."""
        arguments = {**self._network(), **self._all_options(), "create_connection": self._make}
        chain = self._chain()
        try:
            options = options_with_chain(ClientOptions, chain, arguments)
            connection: ClientConnection = open_connection(self.uri, options)  # type: ignore[assignment]
        except Exception as exc:
            heads.adapt(exc)
            raise
        return connection

    def __enter__(self) -> ClientConnection:
        if hasattr(self, "connection"):
            raise RuntimeError("connect() isn't reentrant")
        self.connection = self.connect()
        return self.connection.__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.connection.__exit__(exc_type, exc_value, traceback)
        finally:
            del self.connection

    def __iter__(self) -> Iterator[ClientConnection]:
        delays: Any = None
        while True:
            try:
                with self as connection:
                    yield connection
                delays = None
            except Exception as exc:
                delays = delays or self.reconnect_delays()
                time.sleep(self._delay(exc, delays))


@overload
def connect(
    uri: str,
    *,
    # TCP and TLS
    sock: socket.socket | None = ...,
    ssl: ssl_module.SSLContext | None = ...,
    server_hostname: str | None = ...,
    # WebSocket
    origin: Origin | None = ...,
    extensions: Sequence[Any] | None = ...,
    subprotocols: Sequence[Subprotocol] | None = ...,
    compression: str | None = ...,
    # HTTP
    additional_headers: Any = ...,
    user_agent_header: str | None = ...,
    proxy: str | Literal[True] | None = ...,
    proxy_ssl: ssl_module.SSLContext | None = ...,
    proxy_server_hostname: str | None = ...,
    # Timeouts
    open_timeout: float | None = ...,
    ping_interval: float | None = ...,
    ping_timeout: float | None = ...,
    close_timeout: float | None = ...,
    # Limits
    max_size: int | tuple[int | None, int | None] | None = ...,
    max_queue: int | tuple[int | None, int | None] | None = ...,
    # Logging
    logger: LoggerLike | None = ...,
    # Escape hatch
    create_connection: Callable[..., ClientConnection] | None = ...,
    # For compatibility with later releases of websockets
    legacy: Literal[True] | None = ...,
    # For socket.create_connection
    **kwargs: Any,
) -> ClientConnection: ...


@overload
def connect(
    uri: str,
    *,
    # TCP and TLS
    sock: socket.socket | None = ...,
    ssl: ssl_module.SSLContext | None = ...,
    server_hostname: str | None = ...,
    # WebSocket
    origin: Origin | None = ...,
    extensions: Sequence[Any] | None = ...,
    subprotocols: Sequence[Subprotocol] | None = ...,
    compression: str | None = ...,
    # HTTP
    additional_headers: Any = ...,
    user_agent_header: str | None = ...,
    proxy: str | Literal[True] | None = ...,
    proxy_ssl: ssl_module.SSLContext | None = ...,
    proxy_server_hostname: str | None = ...,
    # Timeouts
    open_timeout: float | None = ...,
    ping_interval: float | None = ...,
    ping_timeout: float | None = ...,
    close_timeout: float | None = ...,
    # Limits
    max_size: int | tuple[int | None, int | None] | None = ...,
    max_queue: int | tuple[int | None, int | None] | None = ...,
    # Logging
    logger: LoggerLike | None = ...,
    # Escape hatch
    create_connection: Callable[..., ClientConnection] | None = ...,
    # For compatibility with later releases of websockets
    legacy: Literal[False],
    # For socket.create_connection
    **kwargs: Any,
) -> reconnect: ...


def connect(
    uri: str,
    *,
    # TCP and TLS
    sock: socket.socket | None = None,
    ssl: ssl_module.SSLContext | None = None,
    server_hostname: str | None = None,
    # WebSocket
    origin: Origin | None = None,
    extensions: Sequence[Any] | None = None,
    subprotocols: Sequence[Subprotocol] | None = None,
    compression: str | None = "deflate",
    # HTTP
    additional_headers: Any = None,
    user_agent_header: str | None = USER_AGENT,
    proxy: str | Literal[True] | None = True,
    proxy_ssl: ssl_module.SSLContext | None = None,
    proxy_server_hostname: str | None = None,
    # Timeouts
    open_timeout: float | None = 10,
    ping_interval: float | None = 20,
    ping_timeout: float | None = 20,
    close_timeout: float | None = 10,
    # Limits
    max_size: int | tuple[int | None, int | None] | None = 2**20,
    max_queue: int | tuple[int | None, int | None] | None = 16,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: Callable[..., ClientConnection] | None = None,
    # For compatibility with later releases of websockets
    legacy: bool | None = None,
    # For socket.create_connection
    **kwargs: Any,
) -> ClientConnection | reconnect:
    """Connect to a WebSocket server.

    Arguments are those of ``websockets.sync.client.connect``; :func:`wirespeed.sync.connect` explains most of them.
    """
    connecting = reconnect(
        uri,
        sock=sock,
        ssl=ssl,
        server_hostname=server_hostname,
        origin=origin,
        extensions=extensions,
        subprotocols=subprotocols,
        compression=compression,
        additional_headers=additional_headers,
        user_agent_header=user_agent_header,
        proxy=proxy,
        proxy_ssl=proxy_ssl,
        proxy_server_hostname=proxy_server_hostname,
        open_timeout=open_timeout,
        ping_interval=ping_interval,
        ping_timeout=ping_timeout,
        close_timeout=close_timeout,
        max_size=max_size,
        max_queue=max_queue,
        logger=logger,
        create_connection=create_connection,
        **kwargs,
    )
    return connecting if legacy is False else connecting.connect()


def unix_reconnect(path: PathLike | None = None, uri: str | None = None, **kwargs: Any) -> reconnect:
    """Connect to a WebSocket server that listens on a Unix socket: see :class:`reconnect`.

    Args:
        path: Path of the socket.
        uri: URI whose host and path go into the request; ``ws://localhost/``, or ``wss://localhost/`` with ``ssl``, by
            default.
        **kwargs: As for :class:`reconnect`.
    """
    return reconnect(local_uri(uri, kwargs), unix=True, path=path, **kwargs)


@overload
def unix_connect(
    path: PathLike | None = ..., uri: str | None = ..., *, legacy: Literal[True] | None = ..., **kwargs: Any
) -> ClientConnection: ...


@overload
def unix_connect(
    path: PathLike | None = ..., uri: str | None = ..., *, legacy: Literal[False], **kwargs: Any
) -> reconnect: ...


def unix_connect(
    path: PathLike | None = None, uri: str | None = None, *, legacy: bool | None = None, **kwargs: Any
) -> ClientConnection | reconnect:
    """Connect to a WebSocket server that listens on a Unix socket.

    Args:
        path: Path of the socket.
        uri: URI whose host and path go into the request; ``ws://localhost/``, or ``wss://localhost/`` with ``ssl``, by
            default.
        legacy: As for :func:`connect`.
        **kwargs: As for :func:`connect`.
    """
    connecting = unix_reconnect(path, uri, **kwargs)
    return connecting if legacy is False else connecting.connect()


def __getattr__(name: str) -> Any:
    return private("sync.client", name)
