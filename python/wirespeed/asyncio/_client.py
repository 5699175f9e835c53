"""The asyncio client: ``connect`` opens one connection, or a new one in each round of ``async for``."""

from __future__ import annotations

import dataclasses
import socket as socket_module
import ssl as ssl_module
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, TypedDict

from .._connection import HandshakeSummary
from .._options.client import AsyncClientOptions, check_headers
from .._options.common import QUEUE_BYTES
from .._options.compression import Deflate
from .._options.hints import NoMore, signature, unexpected_argument
from .._version import USER_AGENT
from ..datastructures import HeadersLike
from ..tls import TLS
from ..typing import LoggerLike, Origin, PathLike, Subprotocol, Unpack
from ._connection import ClientConnection, Listener, establish
from ._opening import check_chain, open_websocket
from ._reconnect import ConnectAttempt, Policy, Reconnection, backoff, process_exception
from ._tasks import Deadline

__all__ = ["connect", "unix_connect"]

_Create = type[ClientConnection] | Callable[..., ClientConnection] | None


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of :class:`connect`."""

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
    process_exception: Callable[[Exception], Exception | None]
    reconnect_delays: Callable[[], Iterable[float]]
    reconnect_after_close: bool
    refresh: Callable[[ConnectAttempt], Awaitable[None] | None] | None
    open_timeout: float | None
    ping_interval: float | None
    ping_timeout: float | None
    close_timeout: float | None
    max_size: int | tuple[int | None, int | None] | None
    max_fragments: int | None
    max_queue: int | tuple[int | None, int | None] | None
    max_queue_bytes: int | None
    write_limit: int | tuple[int, int | None]
    coalesce: bool
    yield_after: int
    io_backend: Literal["fd", "transport"] | None
    listener: Listener | None
    zero_copy: bool
    logger: LoggerLike | None
    create_connection: _Create
    # End of the generated lines


_POLICY = [field.name for field in dataclasses.fields(Policy)]


class ReconnectingOptions(AsyncClientOptions):
    """The options of the asyncio ``connect`` and ``unix_connect``.

    Args:
        options: As for the base class.

    Attributes:
        policy: Those that concern reconnecting.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        policy = Policy(**{name: options[name] for name in _POLICY if name in options})
        super().__init__(options)
        self.policy = policy


class Connecting:
    """Opens connections with checked options: see :class:`connect`.

    Args:
        uri: URI of the server.
        options: The options.
    """

    def __init__(self, uri: str, options: ReconnectingOptions) -> None:
        if options.listener is not None and not isinstance(options.listener, Listener):
            raise TypeError(f"listener must be a wirespeed.Listener, not {type(options.listener).__name__}")
        self._uri = uri
        self._headers = check_headers(options.additional_headers)
        self._options = options
        self._policy = options.policy
        self._entered = False
        self._chain = options.chain(uri, self._headers)
        self._request = check_chain(self._chain, options)

    def _first_attempt(self) -> ConnectAttempt:
        return ConnectAttempt.first(self._uri, self._headers)

    async def _connect(self, attempt: ConnectAttempt) -> ClientConnection:
        options = self._options
        try:
            with Deadline(options.open_timeout) as deadline:
                chain, request = self._chain.copy(), self._request
                if self._policy.refresh is not None:
                    deadline.text = _refresh_timeout
                    await self._policy.call_refresh(attempt)
                    chain = options.chain(attempt.uri, check_headers(attempt.additional_headers))
                    request = check_chain(chain, options)
                opened = await open_websocket(chain, request, options, deadline)
                connection = await establish(opened, options)
        finally:
            # A connection has taken the socket over; without one, it is closed.
            if options.sock is not None:
                options.sock.close()
        options.effective_logger.debug("connection open: %r", HandshakeSummary(connection))
        return connection

    def __await__(self) -> Generator[Any, None, ClientConnection]:
        return self._connect(self._first_attempt()).__await__()

    async def __aenter__(self) -> ClientConnection:
        if self._entered:
            raise RuntimeError("connect() isn't reentrant")
        self._entered = True
        try:
            self._connection = await self
            return await self._connection.__aenter__()
        except BaseException:
            self._entered = False
            raise

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        connection = self._connection
        del self._connection
        self._entered = False
        await connection.__aexit__(exc_type, exc_value, traceback)

    def __aiter__(self) -> Reconnection:
        if self._options.sock is not None:
            raise ValueError("sock can be connected once; it cannot be used to connect again")
        return Reconnection(self._connect, self._first_attempt(), self._policy, self._options.effective_logger)


class connect(Connecting):  # noqa: N801 - it is used as a function
    """Connect to a WebSocket server.

    ``await connect(...)`` returns a connection that the caller closes. As an asynchronous context manager it closes the
    connection with code 1000, or with 1011 after an exception. As an asynchronous iterator it reconnects: each round of
    the loop has a new connection, which is closed at the end of the round::

        async for ws in connect(uri):
            try:
                async for message in ws:
                    ...
            except ConnectionClosed:
                continue

    The iterator tries again, with growing delays, after errors that ``process_exception`` classifies as transient.
    After a connection is lost, or closed by the server with code 1001, it connects again. The time that the connection
    has lasted is subtracted from the delay, so a connection that worked is usually replaced at once. The iteration ends
    when either side has closed the connection with code 1000 or without a code, unless ``reconnect_after_close`` is
    set. If a round leaves the connection open, the iterator closes it and opens the next one at once.

    At most 10 redirects are followed. A redirect to another origin drops user information and the headers
    ``Authorization``, ``Proxy-Authorization``, ``Cookie`` and ``Host``. It keeps ``subprotocols``, ``origin`` and all
    other headers, such as ``X-Api-Key``. User information in the URI is sent as Basic authentication. The addresses of
    a name are tried in parallel (Happy Eyeballs, RFC 8305). Wrong arguments raise in the call, all other errors when
    the object is awaited.

    Args:
        uri: ``ws://`` or ``wss://`` URI.
        sock: Connected TCP or Unix socket to use. It serves one connection, which takes it over and closes it.
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
        process_exception: Decides whether an error of connecting is transient: returns ``None`` to let the iterator try
            again, or an exception to raise.
        reconnect_delays: Returns an iterable of the seconds between the attempts of the iterator. It is called again
            after a connection that lasted longer than the last delay. The iterator waits longer, up to six hours, if a
            response has a Retry-After header. When the delays end, the iterator logs a warning and stops.
        reconnect_after_close: Whether the iterator reconnects after a connection was closed with code 1000 or without a
            code.
        refresh: Function or coroutine function, called before each attempt with a :class:`ConnectAttempt`. It may
            change the URI and the headers, for example to set a new token. ``open_timeout`` includes it.
        open_timeout: Seconds until the connection must be open, redirects included. Each attempt of the iterator has
            its own timeout. ``None`` for no limit.
        ping_interval: Seconds between keepalive pings, ``None`` for no pings.
        ping_timeout: Seconds without progress after an unanswered ping until the connection is closed with code 1011.
            Bytes that arrive, or that the peer acknowledges, are progress. ``None`` disables the timeout.
        close_timeout: Seconds that closing waits for the server; ``None`` for no limit.
        max_size: Maximum size in bytes of a received message, after decompression; ``None`` for no limit. A pair also
            sets the maximum size of a fragment, as its second item.
        max_fragments: Maximum number of fragments of a received message; ``None`` for no limit.
        max_queue: Number of received messages, or fragments, to keep for the application. Reading from the socket stops
            when both ``max_queue`` and ``max_queue_bytes`` are reached, and resumes when one of them is down to a
            quarter. A pair sets the high and the low mark. With ``None``, only the bytes count.
        max_queue_bytes: The same limit in bytes; each message counts 64 bytes more than its size. With ``None``, only
            the number of messages counts; with both ``None``, there is no limit.
        write_limit: Unsent bytes to keep when the server does not read. With more, :meth:`ClientConnection.send` waits
            until they are down to a quarter. A pair sets the high and the low mark.
        coalesce: Whether to collect the messages sent in one iteration of the event loop, except the first, and write
            them at its end with one system call. With ``False``, each ``send`` writes its message at once.
        yield_after: Number of messages that a task can send without being suspended. After them, or after 256 KiB,
            ``send`` lets the event loop run. Receiving does so after each read from the socket.
        io_backend: How the connection uses the socket: ``"fd"`` for a file descriptor that the loop watches,
            ``"transport"`` for a transport of the loop, ``None`` for the file descriptor if the loop can watch it.
            :attr:`ClientConnection.io_backend` returns the choice.
        listener: :class:`wirespeed.Listener` whose methods receive messages and events, instead of ``recv``.
        zero_copy: Whether the listener gets binary messages as ``memoryview``, valid until its method returns.
        logger: Logger for debugging, and for the reasons why the iterator reconnects; by default ``wirespeed.client``.
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

    __signature__ = signature(ConnectOptions, ReconnectingOptions, Policy)

    def __init__(self, uri: str, **options: Unpack[ConnectOptions]) -> None:
        super().__init__(uri, ReconnectingOptions.cached("connect", options, ConnectOptions))


class unix_connect(Connecting):  # noqa: N801 - it is used as a function
    """Connect to a WebSocket server that listens on a Unix socket. Use it like :class:`connect`.

    Other keyword arguments are those of :class:`connect` that do not concern TCP or proxies.

    Args:
        path: Path of the socket, ``None`` if ``sock`` is given.
        uri: URI whose host and path go into the request; ``ws://localhost/``, or ``wss://localhost/`` with ``ssl``,
            by default.
        sock: Connected Unix socket to use instead of ``path``. The connection takes it over and closes it.

    Raises:
        OSError: The connection could not be opened.
        InvalidHandshake: The server refused the handshake.
        TypeError, ValueError: An argument is wrong; raised in the call.
    """

    def __init__(
        self,
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
        # Reconnecting
        process_exception: Callable[[Exception], Exception | None] = process_exception,
        reconnect_delays: Callable[[], Iterable[float]] = backoff,
        reconnect_after_close: bool = False,
        refresh: Callable[[ConnectAttempt], Awaitable[None] | None] | None = None,
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
        # The event loop
        io_backend: Literal["fd", "transport"] | None = None,
        # Callbacks
        listener: Listener | None = None,
        zero_copy: bool = False,
        # Logging
        logger: LoggerLike | None = None,
        # Escape hatch
        create_connection: _Create = None,
        # Others are errors.
        **_unknown: Unpack[NoMore],
    ) -> None:
        arguments = locals()
        del arguments["self"]
        if _unknown:
            raise unexpected_argument("unix_connect", _unknown, arguments)
        if uri is None:
            uri = "ws://localhost/" if ssl is None else "wss://localhost/"
        Connecting.__init__(self, uri, ReconnectingOptions(arguments | {"unix": True, "proxy": None}))


def _refresh_timeout() -> str:
    return "timed out in refresh; raise open_timeout to wait longer"
