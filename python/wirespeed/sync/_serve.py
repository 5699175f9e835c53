"""``serve`` and ``unix_serve``: check the arguments and create a server."""

from __future__ import annotations

import inspect
import re
import socket as socket_module
from collections.abc import Callable, Iterable, Sequence

from .._lazy import ssl as ssl_module
from .._net.binding import Place
from .._options.compression import Deflate
from .._options.hints import NoMore, unexpected_argument
from .._options.server import ServerOptions
from .._version import SERVER
from ..datastructures import Request, Response
from ..tls import TLS
from ..typing import LoggerLike, Origin, PathLike, Subprotocol, Unpack
from ._server import Handler, Server, ServerConnection

__all__ = ["serve", "unix_serve"]

_ProcessRequest = Callable[[ServerConnection, Request], Response | None]
_ProcessResponse = Callable[[ServerConnection, Request, Response], Response | None]
_SelectSubprotocol = Callable[[ServerConnection, Sequence[Subprotocol]], Subprotocol | str | None]
_Create = Callable[..., ServerConnection] | None


def serve(
    handler: Handler,
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
    max_pending: int = 1024,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: _Create = None,
    # Others are errors.
    **_unknown: Unpack[NoMore],
) -> Server:
    """Serve WebSocket connections, each in a thread.

    The server listens when this function returns, and accepts in :meth:`Server.serve_forever`. As a context manager it
    shuts the server down::

        def echo(ws):
            for message in ws:
                ws.send(message)

        with serve(echo, "localhost", 8765) as server:
            server.serve_forever()

    The handler runs in the thread of its connection. When it returns, the connection is closed with code 1000. When it
    raises, the exception is logged and the connection is closed with code 1011.

    A thread starts when the request of a client is complete; until then the thread in ``serve_forever`` waits for all
    clients. Closing many connections at the same time also uses threads. Pings are answered, and keepalive pings are
    sent, while a thread receives, waits for a pong, or waits for room to send.

    Args:
        handler: Function that receives the connection.
        host: Name or address to listen on, or several; ``None`` for all interfaces.
        port: Port; ``None`` or 0 to let the system choose.
        sock: Bound socket to listen on, instead of ``host`` and ``port``. The server closes it.
        ssl: :class:`wirespeed.TLS` with a certificate (native, fast) or an ``ssl.SSLContext``; ``None`` for no TLS.
        family: As for :func:`wirespeed.sync.connect`.
        flags: As for ``socket.getaddrinfo``.
        backlog: Number of connections that the system keeps until they are accepted.
        reuse_address: Whether to bind an address that has connections in the state TIME_WAIT; by default on POSIX.
        reuse_port: Whether several sockets, for example of several processes, may listen on the port.
        subprotocols: Subprotocols to accept, in order of preference.
        compression: ``"deflate"`` to accept permessage-deflate (RFC 7692), a :class:`wirespeed.Deflate` to accept it
            with other settings, ``None`` for no compression.
        origins: Accepted values of the Origin header: ``str`` for an exact value, patterns of :mod:`re` that must match
            the whole value, ``None`` for a missing header. This protects against web pages of other sites. By default,
            all are accepted.
        select_subprotocol: Called with the connection and the list of subprotocols that the client offers; returns one
            of them or ``None``. It may raise :exc:`NegotiationError`.
        process_request: Called with the connection and the request. Returns ``None`` to go on, or a response to send
            instead, such as ``connection.respond(404, "...")``.
        process_response: Called with the connection, the request and the response, which it may change. Returns
            ``None``, or another response to send instead.
        server_header: Value of the Server header, ``None`` for no header.
        open_timeout: Seconds for TLS and the request; ``None`` for no limit.
        ping_interval: As for :func:`wirespeed.sync.connect`.
        ping_timeout: As for :func:`wirespeed.sync.connect`.
        close_timeout: Seconds that closing waits for the client; ``None`` for no limit.
        max_size: As for :func:`wirespeed.sync.connect`.
        max_fragments: As for :func:`wirespeed.sync.connect`.
        max_queue: As for :func:`wirespeed.sync.connect`.
        max_pending: Number of clients whose request, or TLS handshake, may be incomplete at the same time. New clients
            are accepted all the same: above the limit, the server closes a client that was silent for at least a
            second. It selects the address with most pending clients, and of these the one that was silent longest.
            Above 16 times the limit, a second of silence is not required. Complete requests do not count.
        logger: Logger of the server and its connections; by default ``wirespeed.server``.
        create_connection: Subclass of :class:`ServerConnection` to create.

    Raises:
        OSError: The server cannot listen on the address.
        TypeError, ValueError: An argument is wrong; the message names it.
    """
    arguments = locals()
    if _unknown:
        raise unexpected_argument("serve", _unknown, arguments)
    options = ServerOptions(arguments)
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
    handler: Handler,
    path: PathLike | None = None,
    *,
    # TCP and TLS
    sock: socket_module.socket | None = None,
    ssl: TLS | ssl_module.SSLContext | None = None,
    backlog: int = 4096,
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
    max_pending: int = 1024,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: _Create = None,
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
        OSError: The server cannot listen on the path.
        TypeError, ValueError: An argument is wrong; the message names it.
    """
    arguments = locals()
    if _unknown:
        raise unexpected_argument("unix_serve", _unknown, arguments)
    return _make(handler, ServerOptions(arguments), Place(path=path, sock=sock, is_unix=True))


def _make(handler: Handler, options: ServerOptions, place: Place) -> Server:
    if not callable(handler):
        raise TypeError(f"handler must be a function, not {type(handler).__name__}")
    for name, function in (
        ("handler", handler),
        ("process_request", options.process_request),
        ("process_response", options.process_response),
        ("select_subprotocol", options.select_subprotocol),
    ):
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{name} must not be a coroutine function; those are for wirespeed.serve, on an event loop")
    return Server(place, handler, options)
