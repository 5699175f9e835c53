"""The asyncio server API of websockets, on servers of this package."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from ....asyncio._request_hooks import basic_auth as _basic_auth
from ....asyncio._serve import serve as _serve
from ....asyncio._serve import unix_serve as _unix_serve
from ....asyncio._server import Server as _Server
from ....asyncio._server import ServerConnection as _ServerConnection
from ....close_codes import CloseCode
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
from ._network import check_limits
from .connection import Connection, broadcast, use_native

__all__ = ["broadcast", "serve", "unix_serve", "ServerConnection", "Server", "basic_auth"]


class ServerConnection(Logged, Connection, _ServerConnection):
    """The connection of a server; see :class:`wirespeed.ServerConnection`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        use_native(cls)

    def __init__(
        self,
        protocol: Any,
        server: Any,
        *,
        ping_interval: float | None = 20,
        ping_timeout: float | None = 20,
        close_timeout: float | None = 10,
        max_queue: int | tuple[int | None, int | None] | None = 16,
        write_limit: int | tuple[int, int | None] = 2**15,
    ) -> None:
        super().__init__(protocol, ping_interval=ping_interval, ping_timeout=ping_timeout, close_timeout=close_timeout)

    def respond(self, status: StatusLike, text: str) -> Any:
        """Return a plain text HTTP response, for ``process_request`` and ``process_response`` to return.

        Args:
            status: HTTP status code.
            text: Body.
        """
        return heads.response(super().respond(status, text))


_Made = type("ServerConnection", (ServerConnection,), {"__doc__": ServerConnection.__doc__, "__module__": __name__})


class ListenerView:
    """The listening sockets of a server, with the names of ``asyncio.Server``.

    Args:
        server: The server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def sockets(self) -> tuple[Any, ...]:
        """The listening sockets; empty once the server is closed."""
        return self._server.sockets

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._server.get_loop()

    def is_serving(self) -> bool:
        """Return whether the server accepts connections."""
        return self._server.is_serving()

    async def start_serving(self) -> None:
        """Accept connections."""
        await self._server.start_serving()

    async def serve_forever(self) -> None:
        """Accept connections until the server is closed."""
        await self._server.serve_forever()

    def close(self) -> None:
        """Stop listening. Connections stay open."""
        self._server._serving = False
        self._server._stop_listening()

    async def wait_closed(self) -> None:
        """Wait until all TCP connections are closed, except that of a calling handler; do not wait for handlers."""
        server, task = self._server, asyncio.current_task()
        handling, waiters = server._handling, server._listener_waiters
        await server._drain_backlog()
        while True:
            own = handling.get(task)
            others = [connection for connection in server._connections if connection is not own]
            closed = [future for other in others if (future := other._closed_future()) is not None]
            if closed:
                await asyncio.wait(closed)
                continue
            opening = [other for other in server._tasks if other not in handling and other is not task]
            if not opening:
                return
            begun = server.get_loop().create_future()
            waiters.add(begun)
            try:
                await asyncio.wait([begun, *opening], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiters.discard(begun)


class Server(_Server):
    """A WebSocket server, created by :func:`serve`; see :class:`wirespeed.Server`."""

    @property
    def server(self) -> ListenerView:
        """The listening sockets, as an object like ``asyncio.Server``."""
        return ListenerView(self)

    @property
    def all_connections(self) -> set[Any]:
        """The connections whose handlers are running."""
        return set(self._connections)

    @property
    def handler_tasks(self) -> set[Any]:
        """The tasks of connections."""
        return set(self._tasks)

    @property
    def handler(self) -> Any:
        """The handler given to ``serve``."""
        return self._handler

    def close(self, close_connections: bool = True, code: int = CloseCode.GOING_AWAY, reason: str = "") -> None:
        """Begin to close; see :meth:`wirespeed.Server.close`.

        Args:
            close_connections: Whether to close the open connections.
            code: Close code for them.
            reason: Close reason for them.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        check_code(code)
        super().close(close_connections, code, reason)

    @property
    def _handling(self) -> dict[Any, Any]:
        """The open connections by the tasks of their handlers."""
        handling: dict[Any, Any] = vars(self).setdefault("_handling_tasks", {})
        return handling

    @property
    def _listener_waiters(self) -> set[asyncio.Future[None]]:
        """Futures that are done when another handler begins."""
        waiters: set[asyncio.Future[None]] = vars(self).setdefault("_waiters", set())
        return waiters

    async def _handle(self, connection: Any) -> None:
        task = asyncio.current_task()
        handling = self._handling
        handling[task] = connection
        for waiter in self._listener_waiters:
            if not waiter.done():
                waiter.set_result(None)
        try:
            await super()._handle(connection)
        finally:
            handling.pop(task, None)
            log_closed(connection)

    async def _refused(self, connection: Any, remote: Any, error: Exception) -> None:
        try:
            await super()._refused(connection, remote, error)
        finally:
            log_closed(connection)


def serve(
    handler: Callable[[ServerConnection], Awaitable[None]],
    host: str | None = None,
    port: int | None = None,
    *,
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
    write_limit: int | tuple[int, int | None] = 2**15,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: Callable[..., ServerConnection] | None = None,
    # For loop.create_server
    **kwargs: Any,
) -> Server:
    """Serve WebSocket connections. Await the result, or use it as a context manager.

    Arguments are those of ``websockets.asyncio.server.serve``; :func:`wirespeed.serve` explains most of them.
    """
    check_subprotocols(subprotocols)
    if isinstance(create_connection, type):
        check_overrides(create_connection)
    make: Any = _Made if create_connection in (None, ServerConnection) else create_connection
    unix, path = kwargs.pop("unix", False), kwargs.pop("path", None)
    check_limits(kwargs)
    run: Any = handler
    arguments: dict[str, Any] = {
        "ping_interval": ping_interval,
        "ping_timeout": ping_timeout,
        "close_timeout": close_timeout,
        "max_queue": max_queue,
        "write_limit": write_limit,
    }
    options: dict[str, Any] = {
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
    if max_queue is None:
        options["max_queue_bytes"] = None
    for name in ("ssl", "sock", "start_serving"):
        if name in kwargs:
            options[name] = kwargs.pop(name)
    if kwargs.get("backlog") is not None:
        options["backlog"] = kwargs.pop("backlog")
    kwargs.pop("backlog", None)

    def connection(opened: Any, **native: Any) -> Any:
        return make(ProtocolView(opened, native, False, max_size), server, **arguments)

    options["create_connection"] = connection
    if unix:
        # A server always removes its socket file, as asyncio does from Python 3.13 on.
        kwargs.pop("cleanup_socket", None)
        reject(kwargs, "unix_serve")
        server = _unix_serve(run, path, **options)
    else:
        _keep_alive(kwargs, options.get("sock"))
        network: dict[str, Any] = {name: kwargs.pop(name) for name in ("reuse_address", "reuse_port") if name in kwargs}
        network |= {name: kwargs.pop(name) for name in ("family", "flags") if kwargs.get(name) is not None}
        for name in ("family", "flags"):
            kwargs.pop(name, None)
        reject(kwargs, "serve")
        server = _serve(run, host, port, **options, **network)
    # Safe, because the subclass adds no state.
    server.__class__ = Server
    made: Server = server  # type: ignore[assignment]
    return made


def _keep_alive(kwargs: dict[str, Any], _sock: Any) -> None:
    if kwargs.pop("keep_alive", None):
        raise NotImplementedError("wirespeed has no keep_alive; ping_interval finds dead connections sooner")


def unix_serve(
    handler: Callable[[ServerConnection], Awaitable[None]], path: PathLike | None = None, **kwargs: Any
) -> Server:
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
    check_credentials: Callable[[str, str], Awaitable[bool] | bool] | None = None,
) -> Callable[[ServerConnection, Any], Awaitable[Any]]:
    """Return a ``process_request`` that requires HTTP Basic authentication; see :func:`wirespeed.basic_auth`.

    Args:
        realm: Name of the protected area.
        credentials: Username and password, or several such pairs.
        check_credentials: Function or coroutine function that receives both and returns whether they are valid.
    """
    return _basic_auth(realm, pairs(credentials), check_credentials)


def __getattr__(name: str) -> Any:
    return private("asyncio.server", name)
