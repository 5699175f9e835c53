"""The blocking server API of websockets, on servers of this package."""

from __future__ import annotations

import logging
import re
import socket
import ssl as ssl_module
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...._connection import State
from ....close_codes import CloseCode
from ....sync._request_hooks import basic_auth as _basic_auth
from ....sync._serve import serve as _serve
from ....sync._serve import unix_serve as _unix_serve
from ....sync._server import Server as _Server
from ....sync._server import ServerConnection as _ServerConnection
from ....typing import LoggerLike, Origin, PathLike, StatusLike, Subprotocol
from .. import _heads as heads
from .. import _server as hooks
from .._installed import private
from .._server import Logged, log_closed, pairs
from .._settings import (
    MAX_FRAGMENTS,
    check_code,
    check_overrides,
    check_subprotocols,
    exact_origins,
    not_negative,
    reject,
)
from .._views import ProtocolView
from ..extensions.permessage_deflate import deflate_of
from ..http11 import SERVER
from .connection import Connection, broadcast

__all__ = ["broadcast", "serve", "unix_serve", "ServerConnection", "Server", "basic_auth"]


class ServerConnection(Logged, Connection, _ServerConnection):
    """The connection of a server; see :class:`wirespeed.sync.ServerConnection`."""

    server: Any

    def __init__(
        self,
        sock: Any,
        protocol: Any,
        server: Any,
        *,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float | None = 10,
        max_queue: int | tuple[int | None, int | None] | None = 16,
    ) -> None:
        super().__init__(
            sock, protocol, ping_interval=ping_interval, ping_timeout=ping_timeout, close_timeout=close_timeout
        )
        self.server = server

    def respond(self, status: StatusLike, text: str) -> Any:
        """Return a plain text HTTP response, for ``process_request`` and ``process_response`` to return.

        Args:
            status: HTTP status code.
            text: Body.
        """
        return heads.response(super().respond(status, text))


class Server(_Server):
    """A WebSocket server, created by :func:`serve`; see :class:`wirespeed.sync.Server`."""

    @property
    def connections(self) -> set[Any]:
        """The open connections, in a new set."""
        return {connection for connection in self.all_connections if connection._state == State.OPEN}

    @property
    def all_connections(self) -> set[Any]:
        """The connections whose handlers are running."""
        with self._changed:
            return set(self._connections)

    @property
    def handler_threads(self) -> set[Any]:
        """The threads of connections."""
        with self._changed:
            return set(self._threads)

    @property
    def handler(self) -> Any:
        """The handler given to ``serve``."""
        return self._handler

    def shutdown(self, close_connections: bool = True, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Shut the server down; see :meth:`wirespeed.sync.Server.shutdown`.

        Args:
            close_connections: Whether to close the open connections.
            code: Close code for them.
            reason: Close reason for them.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        check_code(code)
        super().shutdown(close_connections, code, reason)

    def _handle(self, connection: Any) -> None:
        try:
            super()._handle(connection)
        finally:
            log_closed(connection)

    def _linger(self, connection: Any) -> None:
        try:
            super()._linger(connection)
        finally:
            log_closed(connection)


def serve(
    handler: Callable[[ServerConnection], None],
    host: str | None = None,
    port: int | None = None,
    *,
    # TCP and TLS
    sock: socket.socket | None = None,
    ssl: ssl_module.SSLContext | None = None,
    # WebSocket
    origins: Sequence[Origin | re.Pattern[str] | None] | None = None,
    extensions: Sequence[Any] | None = None,
    subprotocols: Sequence[Subprotocol] | None = None,
    select_subprotocol: Callable[[ServerConnection, Sequence[Subprotocol]], Subprotocol | None] | None = None,
    compression: str | None = "deflate",
    # HTTP
    process_request: Callable[..., Any] | None = None,
    process_response: Callable[..., Any] | None = None,
    server_header: str | None = SERVER,
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
    create_connection: Callable[..., ServerConnection] | None = None,
    # For socket.create_server
    **kwargs: Any,
) -> Server:
    """Serve WebSocket connections. Use the result as a context manager, and call its ``serve_forever``.

    Arguments are those of ``websockets.sync.server.serve``; :func:`wirespeed.sync.serve` explains most of them.
    """
    if ssl is None and "ssl_context" in kwargs:
        ssl = kwargs.pop("ssl_context")
        warnings.warn("ssl_context was renamed to ssl", DeprecationWarning, stacklevel=2)
    check_subprotocols(subprotocols)
    if isinstance(create_connection, type):
        check_overrides(create_connection)
    make = create_connection or ServerConnection
    unix, path = kwargs.pop("unix", False), kwargs.pop("path", None)
    if sock is not None:
        for name, value in (("host", host), ("port", port), ("path", path)):
            if value is not None:
                raise ValueError(f"{name} is incompatible with sock")
    elif unix and path is None:
        raise ValueError("missing path argument")
    run: Any = handler
    arguments: dict[str, Any] = {
        "ping_interval": ping_interval,
        "ping_timeout": ping_timeout,
        "close_timeout": close_timeout,
        "max_queue": max_queue,
    }
    options: dict[str, Any] = {
        "sock": sock,
        "ssl": ssl,
        "origins": exact_origins(origins),
        "subprotocols": subprotocols,
        "select_subprotocol": hooks.select_subprotocol(select_subprotocol, subprotocols),
        "compression": deflate_of(extensions, compression),
        "process_request": hooks.process_request(process_request),
        "process_response": hooks.process_response(process_response),
        "server_header": server_header,
        "open_timeout": open_timeout,
        "max_size": max_size,
        "max_fragments": MAX_FRAGMENTS,
        "logger": logging.getLogger("websockets.server") if logger is None else logger,
        **arguments,
        "close_timeout": not_negative(close_timeout),
    }
    backlog = kwargs.pop("backlog", None)
    if backlog is not None:
        options["backlog"] = backlog

    def connection(opened: Any, **native: Any) -> Any:
        return make(None, ProtocolView(opened, native, False, max_size), server, **arguments)

    options["create_connection"] = connection
    if kwargs.pop("dualstack_ipv6", False):
        raise NotImplementedError("wirespeed listens on one socket for each family; pass two hosts, or sock=")
    if unix:
        kwargs.pop("family", None)
        reject(kwargs, "unix_serve")
        server = _unix_serve(run, path, **options)
    else:
        # The same defaults as in socket.create_server.
        options["family"] = kwargs.pop("family", socket.AF_INET if sock is None else 0)
        options["reuse_port"] = kwargs.pop("reuse_port", None)
        reject(kwargs, "serve")
        server = _serve(run, host, port, **options)
    # Safe, because the subclass adds no state.
    server.__class__ = Server
    made: Server = server  # type: ignore[assignment]
    return made


def unix_serve(handler: Callable[[ServerConnection], None], path: PathLike | None = None, **kwargs: Any) -> Server:
    """Serve WebSocket connections on a Unix socket.

    Args:
        handler: As for :func:`serve`.
        path: Path of the socket.
        **kwargs: As for :func:`serve`.
    """
    return serve(handler, unix=True, path=path, **kwargs)


def basic_auth(
    realm: str = "",
    credentials: tuple[str, str] | Iterable[tuple[str, str]] | None = None,
    check_credentials: Callable[[str, str], bool] | None = None,
) -> Callable[[ServerConnection, Any], Any]:
    """Return a ``process_request`` that requires HTTP Basic authentication; see :func:`wirespeed.sync.basic_auth`.

    Args:
        realm: Name of the protected area.
        credentials: Username and password, or several such pairs.
        check_credentials: Function that receives both and returns whether they are valid.
    """
    return _basic_auth(realm, pairs(credentials), check_credentials)


def __getattr__(name: str) -> Any:
    if name == "WebSocketServer":
        warnings.warn("WebSocketServer was renamed to Server", DeprecationWarning, stacklevel=2)
        return Server
    return private("sync.server", name)
