"""The blocking client: ``connect`` opens a connection."""

from __future__ import annotations

import socket as socket_module
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from .._connection import HandshakeSummary, construct
from .._lazy import ssl as ssl_module
from .._native import ConnectedSocket
from .._net.addresses import socket_addresses
from .._net.proxy import connect_socks
from .._net.uri import RedirectChain
from .._options.client import ClientOptions, check_headers
from .._options.compression import Deflate
from .._options.hints import NoMore, signature, unexpected_argument
from .._options.plan import OpeningPlan, plan_opening
from .._version import USER_AGENT
from ..datastructures import HeadersLike
from ..exceptions import InvalidStatus
from ..tls import TLS
from ..typing import LoggerLike, Origin, PathLike, Subprotocol, Unpack
from ._connection import ClientConnection
from ._dial import dial, dial_address, dial_unix

__all__ = ["connect", "unix_connect"]

_Create = type[ClientConnection] | Callable[..., ClientConnection] | None


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of :func:`connect`."""

    # Generated from table.py
    sock: socket_module.socket | None
    ssl: TLS | ssl_module.SSLContext | bool | None
    server_hostname: str | None
    host: str | None
    port: int | None
    local_addr: tuple[str, int] | None
    family: int
    happy_eyeballs_delay: float | None
    origin: Origin | str | None
    subprotocols: Sequence[Subprotocol | str] | None
    compression: Deflate | str | None
    additional_headers: HeadersLike | None
    user_agent_header: str | None
    proxy: str | Literal[True] | None
    proxy_ssl: TLS | ssl_module.SSLContext | bool | None
    proxy_server_hostname: str | None
    open_timeout: float | None
    ping_interval: float | None
    ping_timeout: float | None
    close_timeout: float | None
    max_size: int | tuple[int | None, int | None] | None
    max_fragments: int | None
    max_queue: int | tuple[int | None, int | None] | None
    logger: LoggerLike | None
    create_connection: _Create
    # End of the generated lines


def connect(uri: str, **options: Unpack[ConnectOptions]) -> ClientConnection:  # noqa: D417 - under their names
    """Connect to a WebSocket server.

    At most 10 redirects are followed. A redirect to another origin drops user information and the headers
    ``Authorization``, ``Proxy-Authorization``, ``Cookie`` and ``Host``. It keeps ``subprotocols``, ``origin`` and all
    other headers, such as ``X-Api-Key``. User information in the URI is sent as Basic authentication. The addresses of
    a name are tried in parallel (Happy Eyeballs, RFC 8305). No thread is started.

    Args:
        uri: ``ws://`` or ``wss://`` URI.
        sock: Connected TCP or Unix socket to use. The connection takes it over and closes it.
        ssl: TLS settings of a ``wss://`` URI: ``None`` or ``True`` for the authorities that the system trusts, a
            :class:`wirespeed.TLS` (native, fast), or an ``ssl.SSLContext`` (all its settings apply; slower).
        server_hostname: Name that the certificate of the server must have, if it is not the host of the URI. After a
            redirect to another host, the certificate must have the name of that host.
        host: Host to connect to instead of the host of the URI, also through a proxy. The certificate and the request
            still use the host of the URI.
        port: Port to connect to instead of the port of the URI.
        local_addr: Host and port to connect from.
        family: ``socket.AF_INET`` or ``socket.AF_INET6`` to use only such addresses, 0 for both.
        happy_eyeballs_delay: Seconds after which the next address of a name is tried in parallel; ``None`` to try it
            only after a failure.
        origin: Value of the Origin header, for servers that check it.
        subprotocols: Subprotocols to offer, in order of preference.
        compression: ``"deflate"`` to offer permessage-deflate (RFC 7692), a :class:`wirespeed.Deflate` to offer it with
            other settings, ``None`` for no compression.
        additional_headers: Headers to add to the request.
        user_agent_header: Value of the User-Agent header, ``None`` for no header.
        proxy: ``True`` to use the proxy of the environment or the system, ``None`` for no proxy, or the URL of a proxy
            (``http``, ``https``, ``socks4``, ``socks4a``, ``socks5`` or ``socks5h``). SOCKS needs ``wirespeed[socks]``.
        proxy_ssl: TLS settings for an ``https`` proxy, as for ``ssl``.
        proxy_server_hostname: Name that the certificate of the proxy must have, if it is not the host of its URL.
        open_timeout: Seconds until the connection must be open, redirects included; ``None`` for no limit. Resolving a
            name is done by the system, and may take longer.
        ping_interval: Seconds between keepalive pings, ``None`` for no pings. They are sent while a thread receives or
            waits.
        ping_timeout: Seconds without progress after an unanswered ping until the connection is closed with code 1011.
            Bytes that arrive, or that the peer acknowledges, are progress. ``None`` disables the timeout.
        close_timeout: Seconds that closing waits for the server; ``None`` for no limit.
        max_size: Maximum size in bytes of a received message, after decompression; ``None`` for no limit. A pair also
            sets the maximum size of a fragment, as its second item.
        max_fragments: Maximum number of fragments of a received message; ``None`` for no limit.
        max_queue: Number of received messages to keep while no thread receives: during waits for a pong or for room to
            send, and during closing. More messages are kept while their total is below 4 MiB. ``None`` for no limit. Of
            a pair, the first item counts.
        logger: Logger for debugging, by default ``wirespeed.client``.
        create_connection: Subclass of :class:`ClientConnection` to create.

    Raises:
        InvalidURI: ``uri`` is not a WebSocket URI.
        InvalidProxy: The proxy is not supported.
        InvalidHandshake: The server or the proxy refused the handshake; the subclass tells the reason.
        OSError: The connection could not be opened.
        ssl.SSLError: TLS failed; ``ssl.SSLCertVerificationError`` if the certificate of the server is not valid.
        TimeoutError: Opening took longer than ``open_timeout``.
        TypeError, ValueError: An argument is wrong; the message names it.
    """
    return open_connection(uri, ClientOptions.cached("connect", options, ConnectOptions))


connect.__dict__["__signature__"] = signature(ConnectOptions, ClientOptions)


def unix_connect(  # noqa: D417 - the others are those of connect
    path: PathLike | None = None,
    uri: str | None = None,
    *,
    # TCP and TLS
    sock: socket_module.socket | None = None,
    ssl: TLS | ssl_module.SSLContext | bool | None = None,
    server_hostname: str | None = None,
    # WebSocket
    origin: Origin | str | None = None,
    subprotocols: Sequence[Subprotocol | str] | None = None,
    compression: Deflate | str | None = "deflate",
    # HTTP
    additional_headers: HeadersLike | None = None,
    user_agent_header: str | None = USER_AGENT,
    # Timeouts
    open_timeout: float | None = 10,
    ping_interval: float | None = 20,
    ping_timeout: float | None = 20,
    close_timeout: float | None = 10,
    # Limits
    max_size: int | tuple[int | None, int | None] | None = 2**20,
    max_fragments: int | None = 4096,
    max_queue: int | tuple[int | None, int | None] | None = 16,
    # Logging
    logger: LoggerLike | None = None,
    # Escape hatch
    create_connection: _Create = None,
    # Others are errors.
    **_unknown: Unpack[NoMore],
) -> ClientConnection:
    """Connect to a WebSocket server that listens on a Unix socket.

    Other keyword arguments are those of :func:`connect` that do not concern TCP or proxies.

    Args:
        path: Path of the socket, ``None`` if ``sock`` is given.
        uri: URI whose host and path go into the request; ``ws://localhost/``, or ``wss://localhost/`` with ``ssl``,
            by default.
        sock: Connected Unix socket to use instead of ``path``. The connection takes it over and closes it.

    Raises:
        OSError: The connection could not be opened.
        InvalidHandshake: The server refused the handshake.
        TypeError, ValueError: An argument is wrong; the message names it.
    """
    arguments = locals()
    if _unknown:
        raise unexpected_argument("unix_connect", _unknown, arguments)
    if uri is None:
        uri = "ws://localhost/" if ssl is None else "wss://localhost/"
    return open_connection(uri, ClientOptions(arguments | {"unix": True, "proxy": None}))


def open_connection(uri: str, options: ClientOptions) -> ClientConnection:
    """Open a connection with checked options: see :func:`connect`.

    Args:
        uri: URI of the server.
        options: The options.
    """
    chain = options.chain(uri, check_headers(options.additional_headers))
    deadline = None if options.open_timeout is None else time.monotonic() + options.open_timeout
    try:
        return _open(chain, options, deadline)
    finally:
        # A connection has taken the socket over; without one, it is closed.
        if options.sock is not None:
            options.sock.close()


def _open(chain: RedirectChain, options: ClientOptions, deadline: float | None) -> ClientConnection:
    logger = options.effective_logger
    while True:
        plan = plan_opening(chain, options, options.proxy)
        request = options.request(chain.parsed, chain.headers)
        # Prepare the request before connecting, so that the server need not wait for it.
        opening = plan.begin(request, chain.parsed, options)
        connected, addresses = _connect_socket(chain, options, plan, deadline)
        try:
            opened = opening.run(connected, _remaining(deadline))
        except InvalidStatus as exc:
            if _remaining(deadline) == 0:
                # The body of the redirect was cut off by the deadline, so no time is left to follow it.
                raise
            chain.follow(exc)
            logger.debug("redirected with status %d to %s", exc.response.status_code, chain.masked_uri)
            continue
        finally:
            connected.close()
        try:
            connection = construct(
                options.create_connection or ClientConnection, ClientConnection, opened, logger=logger, **addresses
            )
        except BaseException:
            # A logged traceback may keep it alive for long.
            opened._discard()
            raise
        logger.debug("connection open: %r", HandshakeSummary(connection))
        return connection


def _connect_socket(
    chain: RedirectChain, options: ClientOptions, plan: OpeningPlan, deadline: float | None
) -> tuple[ConnectedSocket, dict[str, Any]]:
    """Return a connected socket, and the addresses of its ends if the socket cannot tell them later."""
    if options.sock is not None:
        options.sock.setblocking(True)
        return _take_over(options.sock)
    if options.path is not None:
        return _take_over(dial_unix(options.path, deadline=deadline))
    host, port = options.address(chain.parsed)
    to = (host, port) if plan.proxy is None else (plan.proxy.host, plan.proxy.port)
    by_socks = plan.proxy is not None and plan.proxy.is_socks
    if options.local_addr is None and not by_socks:
        connected = dial_address(*to, deadline=deadline, family=options.family)
        if connected is not None:
            return connected, {}
    sock = dial(
        *to,
        deadline=deadline,
        local_addr=options.local_addr,
        family=options.family,
        happy_eyeballs_delay=options.happy_eyeballs_delay,
    )
    if plan.proxy is not None and by_socks:
        sock = connect_socks(sock, plan.proxy, host, port, deadline=deadline)
    return ConnectedSocket.adopt(sock.detach()), {}


def _take_over(sock: socket_module.socket) -> tuple[ConnectedSocket, dict[str, Any]]:
    addresses = socket_addresses(sock)
    return ConnectedSocket.adopt(sock.detach()), addresses


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
