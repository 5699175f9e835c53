"""``serve`` and ``unix_serve``: check the arguments and create a server."""

from __future__ import annotations

import re
import socket as socket_module
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

from .._net.binding import Place
from .._options.common import QUEUE_BYTES
from .._options.compression import Deflate
from .._options.hints import NoMore, unexpected_argument
from .._options.server import AsyncServerOptions
from .._server.server import check_async_handler
from .._version import SERVER
from ..datastructures import Request, Response
from ..tls import TLS
from ..typing import LoggerLike, Origin, PathLike, Subprotocol, Unpack
from ._connection import Listener
from ._server import Handler, Server, ServerConnection

__all__ = ["serve", "unix_serve"]

_ProcessRequest = Callable[[ServerConnection, Request], Awaitable[Response | None] | Response | None]
_ProcessResponse = Callable[[ServerConnection, Request, Response], Awaitable[Response | None] | Response | None]
_SelectSubprotocol = Callable[[ServerConnection, Sequence[Subprotocol]], Subprotocol | str | None]


def serve(
    handler: Handler | None,
    host: str | Iterable[str] | None = None,
    port: int | None = None,
    *,
    # TCP and TLS
    sock: socket_module.socket | None = None,
    ssl: TLS | ssl_module.SSLContext | None = None,
    family: int = 0,
    flags: int = socket_module.AI_PASSIVE,
    backlog: int = 4096,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    start_serving: bool = True,
    # WebSocket
    subprotocols: Sequence[Subprotocol | str] | None = None,
    compression: Deflate | str | None = "deflate",
    origins: Sequence[Origin | str | re.Pattern[str] | None] | None = None,
    select_subprotocol: _SelectSubprotocol | None = None,
    # HTTP
    process_request: _ProcessRequest | None = None,
    process_response: _ProcessResponse | None = None,
    server_header: str | None = SERVER,
    # Timeouts
    open_timeout: float | None = 10,
    ping_interval: float | None = 20,
    ping_timeout: float | None = 20,
    close_timeout: float | None = 10,
    # Limits
    max_size: int | tuple[int | None, int | None] | None = 2**20,
    max_fragments: int | None = 4096,
    max_queue: int | tuple[int | None, int | None] | None = 16,
    max_queue_bytes: int | None = QUEUE_BYTES,
    write_limit: int | tuple[int, int | None] = 2**15,
    coalesce: bool = True,
    yield_after: int = 1024,
    max_pending: int = 1024,
    # The event loop
    io_backend: Literal["fd", "transport"] | None = None,
    # Callbacks
    listener: Callable[[], Listener] | None = None,
    zero_copy: bool = False,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: Callable[..., ServerConnection] | None = None,
    # Others are errors.
    **_unknown: Unpack[NoMore],
) -> Server:
    """Serve WebSocket connections.

    ``await serve(...)`` starts the server and returns it; the caller closes it. The result is also an asynchronous
    context manager, which closes the server::

        async def echo(ws):
            async for message in ws:
                await ws.send(message)

        async with serve(echo, "localhost", 8765) as server:
            await server.serve_forever()

    The handler runs in a task for each connection. When it returns, the connection is closed with code 1000. When it
    raises, the exception is logged and the connection is closed with code 1011.

    Args:
        handler: Coroutine function that receives the connection; ``None`` with a ``listener``.
        host: Name or address to listen on, or several; ``None`` for all interfaces.
        port: Port; ``None`` or 0 to let the system choose.
        sock: Bound socket to listen on, instead of ``host`` and ``port``. The server closes it.
        ssl: :class:`wirespeed.TLS` with a certificate (native, fast) or an ``ssl.SSLContext``; ``None`` for no TLS.
        family: As for :class:`wirespeed.connect`.
        flags: As for ``socket.getaddrinfo``.
        backlog: Number of connections that the system keeps until they are accepted.
        reuse_address: Whether to bind an address that has connections in the state TIME_WAIT; by default on POSIX.
        reuse_port: Whether several sockets, for example of several processes, may listen on the port.
        start_serving: Whether to accept connections at once; if not, call :meth:`Server.start_serving`.
        subprotocols: Subprotocols to accept, in order of preference.
        compression: ``"deflate"`` to accept permessage-deflate (RFC 7692), a :class:`wirespeed.Deflate` to accept it
            with other settings, ``None`` for no compression.
        origins: Accepted values of the Origin header: ``str`` for an exact value, patterns of :mod:`re` that must match
            the whole value, ``None`` for a missing header. This protects against web pages of other sites. By default,
            all are accepted.
        select_subprotocol: Called with the connection and the list of subprotocols that the client offers; returns one
            of them or ``None``. It may raise :exc:`NegotiationError`.
        process_request: Function or coroutine function, called with the connection and the request. Returns ``None`` to
            go on, or a response to send instead, such as ``connection.respond(404, "...")``.
        process_response: Function or coroutine function, called with the connection, the request and the response,
            which it may change. Returns ``None``, or another response to send instead.
        server_header: Value of the Server header, ``None`` for no header.
        open_timeout: Seconds for the opening handshake, TLS and ``process_request`` included; ``None`` for no limit.
        ping_interval: As for :class:`wirespeed.connect`.
        ping_timeout: As for :class:`wirespeed.connect`.
        close_timeout: Seconds that closing waits for the client; ``None`` for no limit.
        max_size: As for :class:`wirespeed.connect`.
        max_fragments: As for :class:`wirespeed.connect`.
        max_queue: As for :class:`wirespeed.connect`.
        max_queue_bytes: As for :class:`wirespeed.connect`.
        write_limit: As for :class:`wirespeed.connect`.
        coalesce: As for :class:`wirespeed.connect`.
        yield_after: As for :class:`wirespeed.connect`.
        max_pending: Number of clients whose request, or TLS handshake, may be incomplete at the same time. New clients
            are accepted all the same: above the limit, the server closes a client that was silent for at least a
            second. It selects the address with most pending clients, and of these the one that was silent longest.
            Above 16 times the limit, a second of silence is not required. Complete requests do not count.
        io_backend: As for :class:`wirespeed.connect`.
        listener: Function that creates a :class:`wirespeed.Listener` for each connection, such as its class.
        zero_copy: Whether listeners get binary messages as ``memoryview``, valid until their method returns.
        logger: Logger of the server and its connections; by default ``wirespeed.server``.
        create_connection: Subclass of :class:`ServerConnection` to create.

    Raises:
        OSError: The server cannot listen on the address; raised when it is awaited.
        TypeError, ValueError: An argument is wrong; the message names it. Raised in the call.
    """
    arguments = locals()
    if _unknown:
        raise unexpected_argument("serve", _unknown, arguments)
    options = AsyncServerOptions(arguments)
    place = Place(
        host=host,
        port=port,
        sock=sock,
        family=family,
        flags=flags,
        reuse_address=reuse_address,
        reuse_port=reuse_port,
    )
    return _make(handler, options, place)


def unix_serve(  # noqa: D417 - the others are those of serve
    handler: Handler | None,
    path: PathLike | None = None,
    *,
    # TCP and TLS
    sock: socket_module.socket | None = None,
    ssl: TLS | ssl_module.SSLContext | None = None,
    backlog: int = 4096,
    start_serving: bool = True,
    # WebSocket
    subprotocols: Sequence[Subprotocol | str] | None = None,
    compression: Deflate | str | None = "deflate",
    origins: Sequence[Origin | str | re.Pattern[str] | None] | None = None,
    select_subprotocol: _SelectSubprotocol | None = None,
    # HTTP
    process_request: _ProcessRequest | None = None,
    process_response: _ProcessResponse | None = None,
    server_header: str | None = SERVER,
    # Timeouts
    open_timeout: float | None = 10,
    ping_interval: float | None = 20,
    ping_timeout: float | None = 20,
    close_timeout: float | None = 10,
    # Limits
    max_size: int | tuple[int | None, int | None] | None = 2**20,
    max_fragments: int | None = 4096,
    max_queue: int | tuple[int | None, int | None] | None = 16,
    max_queue_bytes: int | None = QUEUE_BYTES,
    write_limit: int | tuple[int, int | None] = 2**15,
    coalesce: bool = True,
    yield_after: int = 1024,
    max_pending: int = 1024,
    # The event loop
    io_backend: Literal["fd", "transport"] | None = None,
    # Callbacks
    listener: Callable[[], Listener] | None = None,
    zero_copy: bool = False,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: Callable[..., ServerConnection] | None = None,
    # Others are errors.
    **_unknown: Unpack[NoMore],
) -> Server:
    """Serve WebSocket connections on a Unix socket, for example behind a reverse proxy.

    Other keyword arguments are those of :func:`serve` that do not concern TCP.

    Args:
        handler: As for :func:`serve`.
        path: Path of the socket, ``None`` if ``sock`` is given. An unused socket file at the path is replaced.
        sock: Bound Unix socket to listen on. The server closes it.

    Raises:
        OSError: The server cannot listen on the path; raised when it is awaited.
        TypeError, ValueError: An argument is wrong; the message names it. Raised in the call.
    """
    arguments = locals()
    if _unknown:
        raise unexpected_argument("unix_serve", _unknown, arguments)
    return _make(handler, AsyncServerOptions(arguments), Place(path=path, sock=sock, is_unix=True))


def _make(handler: Handler | None, options: AsyncServerOptions, place: Place) -> Server:
    if handler is None:
        if options.listener is None:
            raise TypeError("handler is missing; only a server with a listener needs none")
    else:
        check_async_handler(handler)
        if options.listener is not None:
            raise ValueError("handler and listener exclude each other: messages go to the one or the other")
    return Server(place, handler, options)
