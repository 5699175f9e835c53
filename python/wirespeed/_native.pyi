"""Types of the native core, the Rust extension module.

Private, except for the methods that :class:`wirespeed.ClientConnection` and :class:`wirespeed.sync.ClientConnection`
inherit, and the class :class:`wirespeed.sync.Ping`.
"""

import asyncio
import collections
import os
import selectors
import ssl
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, Literal, final, overload
from uuid import UUID

from typing_extensions import Buffer, Self, disjoint_base

from ._native_types import EngineSettings, Stats
from ._options.client import ClientOptions
from ._options.server import ServerOptions
from .datastructures import Headers, Request, Response
from .engine._broker import Published
from .exceptions import ConnectionClosed
from .typing import LoggerLike, Subprotocol

__all__ = [
    "JWT",
    "Answer",
    "AsyncConnection",
    "Batch",
    "BatchIterator",
    "BlockingConnection",
    "ClientOpening",
    "ClientPlan",
    "ClientTLS",
    "Connected",
    "ConnectedSocket",
    "Disconnected",
    "EngineLimits",
    "EventsWaker",
    "Handshake",
    "Invalid",
    "LoopState",
    "Message",
    "NativeDraining",
    "NativeClientOptions",
    "NativeEngine",
    "NativeHandoff",
    "NativeLogs",
    "NativePublisher",
    "NativeServerOptions",
    "NativeSelector",
    "HandshakeLimiter",
    "Opened",
    "PendingHandshake",
    "Ping",
    "CapacityWaker",
    "Sent",
    "ServerTLS",
    "Session",
    "Undecoded",
    "__version__",
    "accept",
    "accept_key",
    "after_fork",
    "broadcast",
    "compression_memory",
    "origin_of",
    "origin_problem",
    "system_authorities",
]

__version__: str

def compression_memory(limit: int | None = None) -> int:
    """Set the memory limit of compression in bytes, unless it is ``None``. Return the previous limit."""

def system_authorities() -> int:
    """Return a number that changes when the files of the system's certificate authorities change."""

def origin_problem(origin: str) -> str | None:
    """Return why no browser sends exactly this Origin header, or ``None`` if a browser may send it."""

def accept(listening: int) -> tuple[int, Any] | None:
    """Accept a pending connection of a listening TCP socket, without blocking.

    Returns:
        Its non-blocking descriptor and the address of the other end, or ``None`` if no connection is pending.
    """

@final
class Answer:
    """The answer of a server to an opening handshake, which its connection sends."""

@final
class ClientTLS:
    """Native form of :class:`wirespeed.TLS`."""

    def __new__(
        cls,
        *,
        ca_pem: Sequence[bytes],
        system_roots: bool,
        cert_pem: bytes | None,
        key_pem: bytes | None,
        verify: bool,
        alpn: Sequence[bytes],
        min_version: str | None,
        max_version: str | None,
        key_log: bool,
    ) -> ClientTLS: ...

@final
class ServerTLS:
    """Native form of :class:`wirespeed.TLS` for a server."""

    def __new__(
        cls,
        *,
        client_ca: Sequence[bytes],
        cert_pem: bytes,
        key_pem: bytes,
        alpn: Sequence[bytes],
        min_version: str | None,
        max_version: str | None,
    ) -> ServerTLS: ...

@final
class NativeClientOptions:
    """The options of a client, read from the attributes of an object and checked.

    Args:
        options: The options.
        event_loop: Whether they are for connections on an event loop.

    Raises:
        TypeError, ValueError: An option is wrong; the message names it.
    """

    def __new__(cls, options: ClientOptions, event_loop: bool) -> Self: ...
    @property
    def open_timeout(self) -> float | None: ...
    @property
    def happy_eyeballs_delay(self) -> float | None: ...

@final
class NativeServerOptions:
    """The options that all connections of a server share; arguments as for :class:`NativeClientOptions`."""

    def __new__(cls, options: ServerOptions, event_loop: bool) -> Self: ...
    @property
    def open_timeout(self) -> float | None: ...

@final
class HandshakeLimiter:
    """The limit of pending handshakes of a server: which ones to close.

    Times are seconds of the caller's clock. Evicted clients are removed; they are returned as their key and the number
    of clients with the same origin, including themselves.
    """

    IDLE_TIME: Final[float]
    GRACE: Final[float]
    BURST: Final[int]

    def __new__(cls, limit: int, idle_time: float, grace: float) -> HandshakeLimiter: ...
    def __len__(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def room(self) -> int: ...
    def delay(self, now: float) -> float:
        """Return for how many seconds not to accept clients."""

    def enter(self, address: Any, descriptor: int, now: float, evict: bool) -> tuple[int, list[tuple[int, int]]]:
        """Add a client; return its key, and the clients evicted for it.

        A negative descriptor means that unread bytes of the client do not matter.
        """

    def progress(self, key: int, now: float) -> None: ...
    def remove(self, key: int) -> bool: ...
    def trim(self, now: float) -> list[tuple[int, int]]:
        """Evict some clients above the limit."""

    def trim_in(self, now: float) -> float | None:
        """Return in how many seconds to call :meth:`trim`, ``None`` within the limit."""

    def evict_one(self, now: float) -> tuple[float, list[tuple[int, int]]] | None:
        """Evict one client; return the seconds until that is possible, and the client. ``None`` without clients."""

def origin_of(address: Any) -> bytes | str:
    """Return the key by which the handshakes of one client are counted together."""

@final
class PendingHandshake:
    """The bytes that an accepted client has sent, and their parser, without I/O of its own.

    1. :meth:`receive` until it returns False.
    2. With TLS, :meth:`start_tls`, because only the first record has been collected.
    3. :meth:`check`, send the output, and receive again until it is complete; then :meth:`finish`.
    """

    def __new__(cls, options: NativeServerOptions, tls: bool = False) -> PendingHandshake: ...
    @property
    def is_silent(self) -> bool:
        """Whether the client has sent nothing."""

    @property
    def is_lost(self) -> bool:
        """Whether the client has ended its stream, so that it cannot be answered."""

    @property
    def is_complete(self) -> bool:
        """Whether the request is complete."""

    @property
    def is_request_only(self) -> bool:
        """Whether the request is complete and no bytes follow it."""

    @property
    def prefix(self) -> bytes:
        """The first bytes of the client, at most 4."""

    def receive(self, data: bytes) -> bool:
        """Process received bytes, empty at the end of the stream; return whether to wait for more.

        An error is kept for :meth:`check`.
        """

    def start_tls(self, tls: ServerTLS | ssl.SSLContext) -> None:
        """Start TLS, and pass it the bytes received so far. Does nothing if it was started."""

    def lose(self) -> None:
        """Discard the request, because the client has disconnected."""

    def check(self) -> None:
        """Raise the error of the bytes received so far, once. After it, call :meth:`reject` and send the output."""

    def reject(self, fields: Sequence[tuple[str, str]]) -> None:
        """Queue the response to an invalid request. Does nothing if no response can be sent."""

    def take_output(self) -> bytes:
        """Return the bytes to send now."""

    def finish(self) -> Opened:
        """Return the parts of a connection, which then answers the request."""

def accept_key(key: str) -> str | None:
    """Return the value of Sec-WebSocket-Accept for a Sec-WebSocket-Key, ``None`` if the key is invalid."""

@final
class Handshake:
    """The opening handshake of a connection, client or server. For a server also its pending answer."""

    @property
    def request(self) -> Request: ...
    @property
    def response(self) -> Response: ...
    @property
    def subprotocol(self) -> Subprotocol | None: ...
    def offered_subprotocols(self) -> list[Subprotocol]: ...
    def draft(
        self, choose: bool, subprotocol: str | None, fields: Sequence[tuple[str, str]]
    ) -> tuple[Response, Exception | None]: ...
    def answer(self, fields: Sequence[tuple[str, str]]) -> Answer: ...
    def respond(self, response: Response) -> Answer: ...

@final
class Opened:
    """A WebSocket after its opening handshake: the argument of a connection's constructor, which takes it once."""

    def _adopt(self, fd: int) -> None: ...
    def _discard(self) -> None: ...

@final
class ConnectedSocket:
    """A connected or connecting stream socket. It is closed with this object, unless it was taken."""

    @staticmethod
    def begin(host: str, port: int, family: int) -> ConnectedSocket | None:
        """Start to connect to a numeric address of a family, 0 for any. ``None`` if the address is not numeric."""

    @staticmethod
    def adopt(fd: int) -> ConnectedSocket:
        """Take over a descriptor that was detached."""

    def is_connected(self) -> bool:
        """Return whether it is connected. Raise the error if the attempt has failed."""

    def wait(self, timeout: float | None) -> int | None:
        """Wait until it is connected.

        Returns:
            0, or the errno of an attempt that has failed; ``None`` after the timeout.
        """

    def fileno(self) -> int:
        """Return the number of the descriptor."""

    def detach(self) -> int:
        """Transfer the descriptor to the caller."""

    def close(self) -> None:
        """Close the socket, unless it was taken."""

@final
class ClientPlan:
    """The request of a client and its options, checked once for any number of openings.

    Raises:
        TypeError, ValueError: The request is invalid.
    """

    def __new__(
        cls,
        options: NativeClientOptions,
        host: str,
        target: str,
        authorization: str | None,
        headers: Sequence[tuple[str, str]],
    ) -> Self: ...

@final
class ClientOpening:
    """The opening of a client, from a connected stream to a WebSocket.

    The order is: TLS with a proxy, the request for a tunnel (RFC 9110, section 9.3.6), TLS with the server, the
    opening handshake (RFC 6455, section 4.1). An exception of a method ends the opening.
    """

    def __new__(
        cls,
        plan: ClientPlan,
        *,
        proxy_tls: tuple[ClientTLS | ssl.SSLContext, str | None] | None = None,
        tunnel: tuple[str, Sequence[tuple[str, str]], str | None] | None = None,
        tls: tuple[ClientTLS | ssl.SSLContext, str | None] | None = None,
    ) -> Self: ...
    @property
    def done(self) -> bool:
        """Whether the server has accepted the WebSocket."""

    @property
    def is_tls_handshaking(self) -> bool:
        """Whether a TLS handshake is in progress."""

    def proceed(self, connected: ConnectedSocket) -> int:
        """Read and write as far as the non-blocking socket allows.

        Returns:
            What the socket must become ready for: 0 nothing, it is done; 1 reading; 3 reading or writing.
        """

    def run(self, connected: ConnectedSocket, timeout: float | None) -> Opened:
        """Open the WebSocket over a socket, which is taken over. Blocks until it is open."""

    def feed(self, data: bytes) -> None:
        """Process received bytes."""

    def take_output(self) -> bytes:
        """Return the bytes to send now, also after an exception."""

    @property
    def is_refused(self) -> bool:
        """Whether the server or the proxy has refused, and the body of its response is still incomplete."""

    def give_up(self) -> Exception | None:
        """Stop waiting for the body of a refusal. Return its exception, with the part of the body that has arrived."""

    def finish(self, connected: ConnectedSocket | None = None) -> Opened:
        """Return the opened WebSocket, on ``connected`` if that is not ``None``, which is taken over."""

@final
class Ping:
    """A ping that was sent. :meth:`ClientConnection.ping` returns it."""

    def wait(self, timeout: float | None = None) -> float:
        """Wait for the pong.

        The waiting thread receives meanwhile, unless another thread does. Messages that arrive meanwhile are queued.

        Args:
            timeout: Seconds to wait, ``None`` for no limit.

        Returns:
            The latency in seconds.

        Raises:
            TimeoutError: The pong did not arrive in time.
            ConnectionClosed: The connection was closed before it arrived.
        """

    def is_set(self) -> bool:
        """Return whether the pong has arrived."""

    def _has_failed(self) -> bool:
        """Return whether the connection ended before the pong arrived."""

    @property
    def latency(self) -> float | None:
        """Seconds between the ping and its pong, ``None`` until the pong has arrived."""

@disjoint_base
class BlockingConnection:
    """The native part of :class:`wirespeed.sync.ClientConnection`."""

    def __new__(
        cls, opened: Opened, *_args: Any, local_address: Any = None, remote_address: Any = None, **_kwargs: Any
    ) -> Self: ...
    @property
    def local_address(self) -> Any:
        """Address of this end, as returned by ``socket.getsockname()`` when the connection was opened."""

    @property
    def remote_address(self) -> Any:
        """Address of the other end: that of the proxy, if there is one."""

    @overload
    def recv(self, timeout: float | None, decode: Literal[True], *, busy_poll: float = 0.0) -> str: ...
    @overload
    def recv(self, timeout: float | None, decode: Literal[False], *, busy_poll: float = 0.0) -> bytes: ...
    @overload
    def recv(self, timeout: float | None = None, *, decode: Literal[True], busy_poll: float = 0.0) -> str: ...
    @overload
    def recv(self, timeout: float | None = None, *, decode: Literal[False], busy_poll: float = 0.0) -> bytes: ...
    @overload
    def recv(self, timeout: float | None = None, decode: bool | None = None, *, busy_poll: float = 0.0) -> str | bytes:
        """Receive the next message.

        Several threads may receive at once: each message goes to one of them.

        Args:
            timeout: Seconds to wait, ``None`` for no limit. No data is lost after a timeout: a partly received
                message is received by a later call.
            decode: ``None`` returns ``str`` for text and ``bytes`` for binary messages. ``True`` always returns
                ``str``, and ``False`` always ``bytes``, without decoding text.
            busy_poll: Seconds to poll the socket before sleeping: lower latency at the cost of a busy core.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed. Messages that arrived before are received first.
            UnicodeDecodeError: ``decode`` is ``True`` and a binary message is not UTF-8.
        """

    @overload
    def recv_nowait(self, decode: Literal[True]) -> str: ...
    @overload
    def recv_nowait(self, decode: Literal[False]) -> bytes: ...
    @overload
    def recv_nowait(self, decode: bool | None = None) -> str | bytes:
        """Receive a message that has arrived.

        Args:
            decode: As for :meth:`recv`.

        Raises:
            BlockingIOError: No message has arrived.
            ConnectionClosed: The connection is closed.
        """

    @overload
    def recv_many(self, limit: int, timeout: float | None, decode: Literal[True]) -> list[str]: ...
    @overload
    def recv_many(self, limit: int, timeout: float | None, decode: Literal[False]) -> list[bytes]: ...
    @overload
    def recv_many(self, limit: int = 1024, timeout: float | None = None, *, decode: Literal[True]) -> list[str]: ...
    @overload
    def recv_many(self, limit: int = 1024, timeout: float | None = None, *, decode: Literal[False]) -> list[bytes]: ...
    @overload
    def recv_many(
        self, limit: int = 1024, timeout: float | None = None, decode: bool | None = None
    ) -> list[str | bytes]:
        """Receive all messages that were read. Wait for the first if there is none.

        Only one read of the socket is made, of at most 256 KiB: the system's buffer may hold more messages.

        Args:
            limit: Maximum number of messages to return.
            timeout: Seconds to wait for the first message, ``None`` for no limit.
            decode: As for :meth:`recv`.

        Returns:
            At least one message, in the order of arrival.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed.
            ValueError: ``limit`` is less than 1.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> str | bytes:
        """Receive the next message. A clean close ends the iteration."""

    def send(
        self,
        message: str | Buffer | Iterable[str] | Iterable[Buffer],
        *,
        text: bool | None = None,
        compress: bool | None = None,
    ) -> None:
        """Send a message. Return when the operating system has accepted all of it.

        Several threads may send at once: messages are not mixed. While the peer does not read, this waits and receives
        messages into the queue, so that two peers that both send do not block each other until ``max_queue`` is full.
        After an exception from a signal handler the connection remains usable: the rest of the message is sent by the
        next call.

        Args:
            message: ``str`` is sent as text; ``bytes``, ``bytearray``, ``memoryview`` and other objects with a buffer
                as binary. The items of an iterable, all of one type, are sent as the fragments of one message.
            text: ``True`` to send bytes, which must be UTF-8, as text; ``False`` to send ``str`` as binary.
            compress: ``False`` sends this message uncompressed, ``True`` compresses it regardless of its size. ``None``
                compresses it from the threshold on. Has no effect without permessage-deflate.

        Raises:
            ConnectionClosed: The connection is closed.
            ConcurrencyError: Another thread is sending a fragmented message.
            TypeError: ``message`` has another type.
            UnicodeEncodeError: ``message`` contains lone surrogates.
            UnicodeDecodeError: ``text`` is ``True`` and ``message`` is not UTF-8.
        """

    def send_many(
        self, messages: Iterable[str | Buffer], *, text: bool | None = None, compress: bool | None = None
    ) -> None:
        """Send many messages, with one system call per 128 KiB. Return when the operating system has accepted them.

        After an exception from a signal handler the connection remains usable. Messages already taken out of
        ``messages`` are sent completely by the next call; only the last one taken may not be sent at all.

        Args:
            messages: Each as for :meth:`send`, without fragments.
            text: As for :meth:`send`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: A message has another type. The messages before it are sent.
        """

    def flush(self) -> None:
        """Return when the operating system has accepted all bytes.

        Calls that send return only then, except after an exception from a signal handler.

        Raises:
            ConnectionClosed: The connection is closed.
        """

    def ping(self, data: str | Buffer | None = None) -> Ping:
        """Send a ping: RFC 6455, section 5.5.2.

        Args:
            data: Payload of at most 125 bytes, ``None`` for a random one.

        Returns:
            An object to wait for the pong, which returns the latency.

        Raises:
            ConnectionClosed: The connection is closed.
            ConcurrencyError: A ping with the same payload is still unanswered.
            ProtocolError: ``data`` is too long.
        """

    def pong(self, data: str | Buffer = b"") -> None:
        """Send an unsolicited pong: RFC 6455, section 5.5.3. Pings are answered automatically.

        Args:
            data: Payload of at most 125 bytes.

        Raises:
            ConnectionClosed: The connection is closed.
            ProtocolError: ``data`` is too long.
        """

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Perform the closing handshake, RFC 6455, section 7.1.2, and close the socket.

        Waits at most ``close_timeout`` for the server. Messages that have arrived can be received afterwards. Messages
        that exceed ``max_queue`` are dropped. Does nothing if the connection is closed.

        Args:
            code: Close code: 1000 to 1003, 1007 to 1014, 3000 to 4999, or 1005 for a close frame without a code.
            reason: Close reason of at most 123 bytes of UTF-8.

        Raises:
            ProtocolError: ``code`` or ``reason`` is not allowed.
        """

    def _wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection is closed, without closing it. Return whether it is.

        Raises:
            ConcurrencyError: The queue is full, no other thread receives, and ``timeout`` is ``None``.
        """

    def abort(self) -> None:
        """Close the socket immediately, without a closing handshake. Unsent messages are lost. Does not block."""

    @property
    def latency(self) -> float:
        """Seconds between the last answered ping, keepalive included, and its pong; 0 before the first."""

    def fileno(self) -> int:
        """Return the socket's descriptor, or -1 once it is closed. Do not read from it or write to it."""

    def stats(self) -> Stats:
        """Return counters of the connection."""

    @property
    def _state(self) -> int: ...
    @property
    def _close(self) -> tuple[int, str] | None: ...
    @property
    def _tls(self) -> ssl.SSLObject | tuple[str, str, int, str | None, tuple[bytes, ...], bool] | None: ...
    def _recv_fragment(self, timeout: float | None = None) -> tuple[bytes, bool, bool]: ...
    def _discard_message(self) -> None: ...
    def _leave(self, code: int) -> None: ...
    def _set_close_timeout(self, seconds: float | None) -> None: ...
    @property
    def _handshake(self) -> Handshake: ...
    def _send_answer(self, answer: Answer) -> Exception | None: ...
    def _closed_error(self) -> ConnectionClosed: ...
    @property
    def _origin(self) -> int: ...

@disjoint_base
class AsyncConnection:
    """The native part of :class:`wirespeed.ClientConnection`."""

    def __new__(
        cls,
        opened: Opened,
        *,
        loop: asyncio.AbstractEventLoop,
        logger: LoggerLike,
        local_address: Any = None,
        remote_address: Any = None,
        listener: object | None = None,
        server: Any = None,
        **_kwargs: Any,
    ) -> Self: ...
    @property
    def id(self) -> UUID:
        """A UUID, for logs."""

    @property
    def logger(self) -> LoggerLike:
        """The logger passed to ``connect``."""

    @property
    def local_address(self) -> Any:
        """Address of this end, as returned by ``socket.getsockname()`` when the connection was opened."""

    @property
    def remote_address(self) -> Any:
        """Address of the other end: that of the proxy, if there is one."""

    @property
    def _server(self) -> Any: ...
    @property
    def _is_over(self) -> bool: ...
    @property
    def _is_forked(self) -> bool: ...
    _streaming_receiver: bool
    @overload
    def recv(self, decode: Literal[True]) -> Coroutine[Any, Any, str]: ...
    @overload
    def recv(self, decode: Literal[False]) -> Coroutine[Any, Any, bytes]: ...
    @overload
    def recv(self, decode: bool | None = None) -> Coroutine[Any, Any, str | bytes]:
        """Receive the next message.

        Several tasks may receive at once, in the order of their calls. Cancelling this loses no message.

        Args:
            decode: ``None`` returns ``str`` for text and ``bytes`` for binary messages. ``True`` always returns
                ``str``, and ``False`` always ``bytes``, without decoding text.

        Raises:
            ConnectionClosed: The connection is closed. Messages that arrived before are received first.
            ConcurrencyError: A message is being received by :meth:`recv_streaming`.
            RuntimeError: Messages go to a listener.
            UnicodeDecodeError: ``decode`` is ``True`` and a binary message is not UTF-8.
        """

    @overload
    def recv_nowait(self, decode: Literal[True]) -> str: ...
    @overload
    def recv_nowait(self, decode: Literal[False]) -> bytes: ...
    @overload
    def recv_nowait(self, decode: bool | None = None) -> str | bytes:
        """Receive a message that has arrived.

        Args:
            decode: As for :meth:`recv`.

        Raises:
            BlockingIOError: No message has arrived, or tasks wait for it.
            ConnectionClosed: The connection is closed.
            ConcurrencyError: A message is being received by :meth:`recv_streaming`.
            RuntimeError: Messages go to a listener.
        """

    @overload
    def recv_many(self, limit: int, decode: Literal[True]) -> Coroutine[Any, Any, list[str]]: ...
    @overload
    def recv_many(self, limit: int, decode: Literal[False]) -> Coroutine[Any, Any, list[bytes]]: ...
    @overload
    def recv_many(self, limit: int = 1024, *, decode: Literal[True]) -> Coroutine[Any, Any, list[str]]: ...
    @overload
    def recv_many(self, limit: int = 1024, *, decode: Literal[False]) -> Coroutine[Any, Any, list[bytes]]: ...
    @overload
    def recv_many(self, limit: int = 1024, decode: bool | None = None) -> Coroutine[Any, Any, list[str | bytes]]:
        """Receive all messages that were read. Wait for the first if there is none.

        Only one read of the socket is made, of at most 256 KiB: the system's buffer may hold more messages.

        Args:
            limit: Maximum number of messages to return.
            decode: As for :meth:`recv`.

        Returns:
            At least one message, in the order of arrival.

        Raises:
            ConnectionClosed: The connection is closed.
            ConcurrencyError: A message is being received by :meth:`recv_streaming`.
            RuntimeError: Messages go to a listener.
            ValueError: ``limit`` is less than 1.
        """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, str | bytes]:
        """Receive the next message. A clean close ends the iteration."""

    def send(
        self,
        message: str | Buffer | Iterable[str] | Iterable[Buffer] | AsyncIterable[str] | AsyncIterable[Buffer],
        *,
        text: bool | None = None,
        compress: bool | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Send a message.

        The call itself queues a single message if there is room. If more than ``write_limit`` is queued, awaiting it
        waits until the queue is down to the low watermark. Cancelling never splits a frame: a message is sent
        completely, or not at all if it had to wait for room.

        Args:
            message: ``str`` is sent as text; ``bytes``, ``bytearray``, ``memoryview`` and other objects with a buffer
                as binary. The items of an iterable or asynchronous iterable, all of one type, are sent as the fragments
                of one message. Other messages wait until it is complete.
            text: ``True`` to send bytes, which must be UTF-8, as text; ``False`` to send ``str`` as binary.
            compress: ``False`` sends this message uncompressed, ``True`` compresses it regardless of its size. ``None``
                compresses it from the threshold on. Has no effect without permessage-deflate.

        Raises:
            ConnectionClosed: The connection is closed; raised when awaited.
            TypeError: ``message`` has another type.
            UnicodeEncodeError: ``message`` contains lone surrogates.
            UnicodeDecodeError: ``text`` is ``True`` and ``message`` is not UTF-8.
        """

    def send_nowait(self, message: str | Buffer, *, text: bool | None = None, compress: bool | None = None) -> None:
        """Send a message without waiting.

        Args:
            message: As for :meth:`send`, without fragments.
            text: As for :meth:`send`.
            compress: As for :meth:`send`.

        Raises:
            BlockingIOError: More than ``write_limit`` is queued, or other tasks wait to send. The listener's
                ``on_writable`` is called when there is room again.
            ConnectionClosed: The connection is closed.
            TypeError: ``message`` has another type.
        """

    def send_many(
        self,
        messages: Iterable[str | Buffer] | AsyncIterable[str | Buffer],
        *,
        text: bool | None = None,
        compress: bool | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Send many messages, with one system call per 64 KiB. Messages of other tasks may be sent in between.

        Args:
            messages: Each as for :meth:`send`, without fragments.
            text: As for :meth:`send`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: A message has another type. The messages before it are sent.
        """

    def abort(self) -> None:
        """Close the socket immediately, without a closing handshake. Unsent messages are lost. Does not block."""

    @property
    def latency(self) -> float:
        """Seconds between the last answered ping, keepalive included, and its pong; 0 before the first."""

    @property
    def io_backend(self) -> Literal["fd", "transport"]:
        """The I/O backend: ``"fd"`` if the loop watches the descriptor, ``"transport"`` for a transport of the loop."""

    def stats(self) -> Stats:
        """Return counters of the connection."""

    @property
    def _loop_adapter(self) -> asyncio.Protocol: ...
    @property
    def _transport(self) -> asyncio.Transport | None: ...
    @property
    def _state(self) -> int: ...
    @property
    def _close(self) -> tuple[int, str] | None: ...
    @property
    def _tls(self) -> ssl.SSLObject | tuple[str, str, int, str | None, tuple[bytes, ...], bool] | None: ...
    @property
    def _listener_error(self) -> BaseException | None: ...
    @property
    def _is_mid_frame(self) -> bool: ...
    def _attach(self) -> None: ...
    def _recv_fragment(self) -> Coroutine[Any, Any, tuple[bytes, bool, bool]]: ...
    def _discard_message(self) -> None: ...
    def _begin_fragments(self) -> None: ...
    def _end_fragments(self) -> None: ...
    def _send_fragment(
        self, fragment: str | Buffer, first: bool, fin: bool, text: bool | None, compress: bool | None
    ) -> tuple[bool, Awaitable[None]]: ...
    def _room(self) -> Coroutine[Any, Any, None]: ...
    def _drained(self) -> Coroutine[Any, Any, None]: ...
    def flush(self) -> Coroutine[Any, Any, None]:
        """Wait until the kernel has accepted all bytes queued before the call.

        Raises:
            ConnectionClosed: The connection was closed before that.
        """

    def _ping(self, data: str | Buffer | None = None) -> asyncio.Future[float]: ...
    def _pong(self, data: str | Buffer) -> None: ...
    def _begin_close(self, code: int, reason: str, *, keep: bool = False) -> None: ...
    def _closed_future(self, *, awaited: bool = True) -> asyncio.Future[None] | None: ...
    def _leave(self, code: int) -> None: ...
    def _set_close_timeout(self, seconds: float | None) -> None: ...
    @property
    def _loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def _handshake(self) -> Handshake: ...
    def _send_answer(self, answer: Answer) -> Exception | None: ...
    def _closed_error(self) -> ConnectionClosed: ...
    @property
    def _origin(self) -> int: ...
    def _fileno(self) -> int: ...

@final
class LoopState:
    """State that the connections of one event loop share."""

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> LoopState:
        """Return the state of a loop. It is created on the first call."""

    def _watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call a function whenever a descriptor is readable, until it is ignored or a connection takes it over."""

    def _ignore(self, fd: int) -> None:
        """Stop watching a descriptor."""

    def _ready(self, fd: int, to_read: bool, to_write: bool) -> Awaitable[None] | None:
        """Return an awaitable for a descriptor to become ready. ``None`` if the loop's own methods must be used.

        The descriptor stays watched until it is ignored or a connection takes it over.
        """

@final
class NativeSelector:
    """The native part of :class:`wirespeed.asyncio.loop.Selector`. Linux only."""

    def __new__(cls, busy_poll: float = 0.0) -> Self: ...
    def attach(self, ready: collections.deque[Any], scheduled: list[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Attach the selector to its loop."""

    def fileno(self) -> int:
        """Return the number of the epoll descriptor."""

    def register(self, fd: int, events: int, key: selectors.SelectorKey) -> None:
        """Watch a descriptor."""

    def modify(self, fd: int, events: int, key: selectors.SelectorKey) -> None:
        """Change the watched events of a descriptor."""

    def unregister(self, fd: int) -> None:
        """Stop watching a descriptor."""

    def get_key(self, fd: int) -> selectors.SelectorKey:
        """Return the key that a descriptor was registered with."""

    def map(self) -> dict[int, selectors.SelectorKey]:
        """Return the dict of all keys, not a copy."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until a descriptor of the loop is ready. Serves connections meanwhile."""

    def close(self) -> None:
        """Close the epoll descriptor."""

def after_fork() -> None:
    """Discard the masking keys that were drawn before a fork."""

def broadcast(
    connections: Iterable[Any], message: str | Buffer, text: bool | None, slow: str
) -> tuple[int, list[tuple[AsyncConnection, str]]]:
    """Send a message to all open connections. See :func:`wirespeed.broadcast`.

    Returns:
        How many connections got it, and which of the others did not, with the reason.
    """

@final
class JWT:
    """Verification of clients' tokens (RFC 7519) before they become sessions.

    A claim ``topics``, ``{"allow": [...], "deny": [...]}``, restricts the topics that a client may subscribe to:
    ``deny`` takes precedence, and ``{user}`` in a pattern stands for the claim ``sub``. A session is closed with code
    1008 when its token expires.

    Args:
        key: The secret for ``HS...`` algorithms, or the public key as PEM for the others.
        algorithms: One or several of HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384,
            ES512 and EdDSA, of the same family. ``Ed25519`` is another name for EdDSA.
        jwks: Instead of a key, the path of a key set (RFC 7517). It is read again when the file changes.
        previous_key: A second key to accept, while tokens signed with it are still in use.
        key_id: The ``kid`` that tokens must have.
        previous_key_id: The ``kid`` of the previous key.
        issuer: The ``iss`` that tokens must have.
        audience: The accepted audiences, one or several. Tokens must have one of them in ``aud``.
        leeway: Allowed difference to the issuer's clock in seconds, 30 by default.
        required: Claims that tokens must have; ``exp`` and ``sub`` by default.
        max_token: Maximum size of a token in bytes, 8,192 by default.
        cookie: Name of a cookie that may contain the token. Checked first.
        header: Whether ``Authorization: Bearer`` may contain the token. Checked second.
        query: Name of a query parameter that may contain the token. Checked third. Proxies may log it.
        subprotocol: Prefix of a subprotocol that contains the token, for browsers without a cookie. Checked last. The
            engine must offer another subprotocol, because browsers fail a connection that selects none.

    Raises:
        OSError: The key set cannot be read.
        TypeError: Neither or both of ``key`` and ``jwks`` are set.
        ValueError: The key does not fit the algorithms or is too short, or a number is out of range. The text names
            the argument.
    """

    def __new__(
        cls,
        key: str | bytes | None = None,
        algorithms: str | Sequence[str] | None = None,
        *,
        jwks: str | os.PathLike[str] | None = None,
        previous_key: str | bytes | None = None,
        key_id: str | None = None,
        previous_key_id: str | None = None,
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        leeway: int = 30,
        required: Sequence[str] | None = None,
        max_token: int = 8192,
        cookie: str | None = None,
        header: bool = True,
        query: str | None = None,
        subprotocol: str | None = None,
    ) -> Self: ...

@final
class Session:
    """A client of an engine. It can be kept and used from any thread, also after its end.

    Attributes:
        id: A number that is unique within the engine.
        path: The path of the request, not decoded.
        query: The query string of the request, not decoded; empty if there is none.
        remote_address: Address and port of the client; ``None`` at a Unix socket.
        subprotocol: The selected subprotocol.
        route: The path that was passed to :meth:`Engine.route`, such as ``"/feed/{symbol}"``; ``None`` without a route.
        params: The values of the route's parameters, a new ``dict`` each time: percent-decoded UTF-8, or the raw text
            if it is not UTF-8.
        user: The claim ``sub`` of the token; ``None`` if no token is required.
        claims: The other claims of the token, a new ``dict`` each time; ``None`` if no token is required.
        is_open: Whether the session accepts messages.
        queued: Bytes that were recently queued because the client reads slowly.
    """

    @property
    def id(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def headers(self) -> Headers:
        """The header fields of the request, a new object each time."""

    @property
    def remote_address(self) -> tuple[str, int] | None: ...
    @property
    def subprotocol(self) -> Subprotocol | None: ...
    @property
    def route(self) -> str | None: ...
    @property
    def params(self) -> dict[str, str]: ...
    @property
    def user(self) -> str | None: ...
    @property
    def claims(self) -> dict[str, Any] | None: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def queued(self) -> int: ...
    @property
    def has_room(self) -> bool:
        """Whether the session is open and less than half of ``outbox_limit`` is queued."""

    def refresh(self, token: str) -> None:
        """Replace the session's token with another token of the same user, received through the application's protocol.

        The token is verified like the first one, by the rules of the session's path. From now on it determines
        :attr:`claims`, the permissions of the session, and its end. Additions by :meth:`allow` and :meth:`deny` remain,
        and existing subscriptions continue.

        Args:
            token: The token, without ``Bearer``.

        Raises:
            InvalidState: The session is closed.
            PermissionError: The token is invalid, or has another or no user (``sub``). The text gives the reason.
                Nothing changes.
            RuntimeError: The session's path requires no token.
        """

    def stats(self) -> dict[str, Any]:
        """Return the counters of the session; after its end, the final values.

        ``messages_received`` and ``bytes_received``; ``messages_sent`` and ``bytes_sent``, as far as the connection has
        accepted them; ``queued_bytes``, queued because the client reads slowly; ``messages_dropped`` for that reason;
        ``messages_limited``, dropped because the client sends too many; ``messages_denied`` of relays;
        ``subscriptions``, their number; ``open_seconds``, the time since the session was opened. Bytes are those of
        payloads.

        Waits for the thread that serves the session, usually less than a millisecond.

        Raises:
            InvalidState: The engine is stopping.
            TimeoutError: The thread has not answered for five seconds.
        """

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Wait until there is room for more messages. Other threads run meanwhile.

        Args:
            timeout: Seconds to wait, ``None`` for no limit.

        Returns:
            Whether there is room.

        Raises:
            InvalidState: The session is closed.
        """

    def _capacity_waker(self) -> CapacityWaker: ...
    def _capacity_key(self) -> int: ...
    def send(self, message: str | Buffer, text: bool | None = None) -> Sent:
        """Send a message, after all messages that were sent to the session before.

        Args:
            message: ``str`` is sent as text, an object with a buffer as binary.
            text: ``True`` to send it as text, which must be UTF-8; ``False`` to send it as binary.

        Returns:
            Whether there is room for more. If not, callers should wait: on an event loop by awaiting the result, in a
            thread by :meth:`wait_for_room`.

        Raises:
            BlockingIOError: The session's queue is far above its limit.
            InvalidState: The session is closed.
            TypeError: The message is neither ``str`` nor has it a buffer.
            UnicodeError: The text is not UTF-8.
        """

    def subscribe(self, topic: str) -> bool:
        """Subscribe the session to the messages published on a topic from now on.

        Args:
            topic: A topic of at most 255 bytes, with segments between dots as in ``"prices.EURUSD"``; or a pattern, in
                which ``*`` matches one segment, and ``>`` at the end one or more.

        Returns:
            Whether the subscription is new.

        Raises:
            InvalidState: The session is closed.
            PermissionError: The session may not subscribe to it, see :meth:`may_subscribe`.
            RuntimeError: The session has ``max_subscriptions`` subscriptions already.
            ValueError: The topic is invalid. The text names the error and its position.
        """

    def unsubscribe(self, topic: str) -> bool:
        """Unsubscribe the session from a topic.

        Returns:
            Whether the session was subscribed to it.

        Raises:
            ValueError: The topic is invalid.
        """

    def allow(self, *patterns: str, subscribe: bool = True, publish: bool = True) -> None:
        """Allow the session topics that match these patterns, in addition to those that its token allows.

        Args:
            *patterns: As for :meth:`subscribe`. ``{user}`` stands for the ``sub`` of the token, as one segment.
            subscribe: Whether the session may subscribe to them.
            publish: Whether the session may publish on them.

        Raises:
            ValueError: A pattern is invalid. Nothing has changed.
        """

    def deny(self, *patterns: str, subscribe: bool = True, publish: bool = True) -> None:
        """Deny the session topics, regardless of earlier or later permissions. Existing subscriptions continue.

        Args:
            *patterns: As for :meth:`allow`.
            subscribe: Whether subscribing is denied.
            publish: Whether publishing is denied.

        Raises:
            ValueError: A pattern is invalid. Nothing has changed.
        """

    def may_subscribe(self, topic: str) -> bool:
        """Return whether the session may subscribe to a topic, or to all topics that match a pattern.

        Raises:
            ValueError: The topic is invalid.
        """

    def may_publish(self, topic: str) -> bool:
        """Return whether the session may publish on a topic. :meth:`Engine.publish` does not check this.

        Raises:
            ValueError: The topic is invalid.
        """

    def publish(
        self,
        topic: str,
        message: str | Buffer,
        *,
        text: bool | None = None,
        exclude_self: bool = False,
        key: str | None = None,
    ) -> int:
        """Send a message to the sessions that subscribe to a topic, if this session may publish on it.

        Args:
            topic: Name of the topic, without wildcards.
            message: ``str`` is sent as text, an object with a buffer as binary.
            text: ``True`` to send it as text, which must be UTF-8; ``False`` to send it as binary.
            exclude_self: Whether this session does not get the message, if it subscribes to the topic.
            key: Identifies the subject of the message, for ``policy="conflate"``.

        Returns:
            The number of sessions that it is sent to.

        Raises:
            BlockingIOError: Queues are far above their limits, see ``engine.has_room``.
            InvalidState: The engine has stopped.
            PermissionError: The session may not publish on it, see :meth:`may_publish`.
            ValueError: The topic is invalid. The text names the error and its position.
        """

    @property
    def topics(self) -> list[str]:
        """The topics that the session subscribes to, in no particular order."""

    def _set_reading(self, reads: bool) -> None: ...
    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the session after all messages sent to it before. Does nothing if it is closed.

        Args:
            code: Close code (RFC 6455 7.4).
            reason: Close reason of at most 123 bytes of UTF-8.

        Raises:
            ProtocolError: The code is not allowed, or the reason is too long.
        """

@final
class Sent:
    """The return value of :meth:`Session.send`: true if there is room for more.

    Awaiting it waits for room. The result is whether there is room: ``False`` if the session has ended.
    """

    def __bool__(self) -> bool: ...
    def __await__(self) -> Generator[Any, None, bool]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> None: ...

@final
class CapacityWaker:
    """A descriptor that is readable once there may be room, until it is closed."""

    def fileno(self) -> int: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...

@final
class EventsWaker:
    """A descriptor that is readable once there are events. Closing it passes its notification on to another waker."""

    def fileno(self) -> int: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...
    def wait(self) -> bool:
        """Arm the descriptor once. ``False`` if there may be events already, and it is not armed."""

@final
class Connected:
    """A session was opened.

    Attributes:
        session: The session.
    """

    __match_args__ = ("session",)
    @property
    def session(self) -> Session: ...

@final
class Message:
    """A message was received.

    Attributes:
        session: The session that it came from.
        data: ``str`` for text, ``bytes`` for binary; or the object that the codec of the route has decoded.
    """

    __match_args__ = ("session", "data")
    @property
    def session(self) -> Session: ...
    @property
    def data(self) -> Any: ...

@final
class Invalid:
    """A message that the codec of its route cannot decode.

    Attributes:
        session: The session that it came from. It is closed with code 1007, unless its route keeps such sessions.
        data: ``str`` for text, ``bytes`` for binary.
        error: The error text of the codec.
    """

    __match_args__ = ("session", "data", "error")
    @property
    def session(self) -> Session: ...
    @property
    def data(self) -> str | bytes: ...
    @property
    def error(self) -> str: ...

@final
class Batch:
    """A sequence of events of all sessions, in order for each session. Each event is created on access.

    Accessing an event twice creates two objects.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: int, /) -> Connected | Message | Invalid | Disconnected: ...
    @overload
    def __getitem__(self, key: slice, /) -> list[Connected | Message | Invalid | Disconnected]: ...
    def __iter__(self) -> BatchIterator: ...
    def _undecoded(self) -> Iterator[Connected | Message | Undecoded | Disconnected]: ...

@final
class Undecoded:
    """A message that its codec has not decoded yet. Its size is that of the received bytes."""

    @property
    def session(self) -> Session: ...
    @property
    def data(self) -> bytes: ...
    def decode(self) -> Message | Invalid: ...

@final
class BatchIterator:
    """Iterates over the events of a batch."""

    def __iter__(self) -> BatchIterator: ...
    def __next__(self) -> Connected | Message | Invalid | Disconnected: ...
    def __length_hint__(self) -> int: ...

@final
class Disconnected:
    """A session has ended. No more events of it follow.

    Attributes:
        session: The session.
        code: The close code that the client sent; 1005 for a close frame without a code, 1006 without a close frame.
        reason: The close reason that the client sent.
        failure: The reason as text if the connection failed, else ``None``.
    """

    __match_args__ = ("session", "code", "reason")
    @property
    def session(self) -> Session: ...
    @property
    def code(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def failure(self) -> str | None: ...

@final
class EngineLimits:
    """Limits for the number of clients of an engine, and for the messages that they send."""

    def __new__(
        cls,
        *,
        max_connections: int | None,
        max_pending: int,
        max_connections_per_address: int | None,
        connections_per_second_per_address: float | None,
        connection_burst_per_address: float | None,
        max_sessions_per_user: int | None,
        retry_after: float,
        proxy_protocol: Sequence[str],
        trusted_proxies: Sequence[str],
        forwarded_header: str,
        max_messages_per_second: float | None,
        message_burst: float | None,
        max_bytes_per_second: float | None,
        byte_burst: float | None,
        rate_policy: str,
        topics_by_default: str,
    ) -> EngineLimits: ...

@disjoint_base
class NativePublisher:
    """Base of :class:`wirespeed.engine.Publisher`."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def _open(self, url: str, prefix: str, limit: int) -> None: ...
    def _publish(self, to: str | None, message: str | Buffer, text: bool | None, key: str | None) -> bool: ...
    def _wait_for_room(self, size: int, timeout: float | None) -> bool: ...
    def _published(self) -> int: ...
    def _missing(self) -> int: ...
    def _flush(self, published: int, timeout: float | None) -> int | None: ...
    def _has_room(self, size: int) -> bool: ...
    def _capacity_waker(self) -> CapacityWaker: ...
    def _capacity_key(self) -> int: ...
    def _end(self) -> None: ...
    def _has_ended(self) -> bool: ...
    def _close(self) -> None: ...
    def _logs(self) -> NativeLogs: ...
    def _status(self) -> dict[str, Any]: ...

@disjoint_base
class NativeEngine:
    """Base of :class:`wirespeed.engine.Engine`."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def _configure(
        self,
        listen: Sequence[tuple[str | None, int, str | None, ServerTLS | None]],
        *,
        auth: JWT | None,
        workers: int,
        origins: Sequence[str] | None,
        subprotocols: Sequence[str],
        compression: bool,
        max_size: int | None,
        max_fragments: int | None,
        open_timeout: float,
        ping_interval: float | None,
        ping_timeout: float | None,
        close_timeout: float,
        outbox_limit: int,
        total_outbox_limit: int,
        reuse_port: bool,
        policy: str,
        mailbox_limit: int,
        max_subscriptions: int,
        busy_poll: float,
        max_events: int,
        max_event_bytes: int,
        limits: EngineLimits,
    ) -> None: ...
    def _set_broker(self, url: str, prefix: str, limit: int, policy: str) -> None: ...
    def _broker_status(self) -> dict[str, Any] | None: ...
    def _broker_notices(self) -> list[tuple[str, int, str]]: ...
    def _route(self, path: str, role: str, settings: Mapping[str, Any], tag: int) -> None: ...
    def _start(self, rest: int) -> None: ...
    @property
    def addresses(self) -> list[Any]:
        """The listening addresses: address and port, or the path of a Unix socket."""

    @property
    def workers(self) -> int:
        """The number of serving threads."""

    def _take(self, max_events: int, timeout: float | None) -> Batch | None: ...
    def _set_codecs(
        self, codecs: Sequence[tuple[Callable[[bytes], Any] | None, Callable[[bytes], Any] | None, bool]]
    ) -> None: ...
    def _events_waker(self) -> EventsWaker: ...
    def _wake_taker(self) -> None: ...
    def broadcast(self, message: str | Buffer, *, text: bool | None = None, exclude: Session | None = None) -> bool:
        """Send a message to all open sessions. It is encoded once.

        Args:
            message: ``str`` is sent as text, an object with a buffer as binary.
            text: ``True`` to send it as text, which must be UTF-8; ``False`` to send it as binary.
            exclude: A session that does not get the message.

        Returns:
            Whether there is room for more. If not, callers should wait by :meth:`wait_for_room`.

        Raises:
            InvalidState: The engine has stopped.
            RuntimeError: The engine has not started.
        """

    def publish(
        self,
        topic: str,
        message: str | Buffer,
        *,
        text: bool | None = None,
        exclude: Session | None = None,
        key: str | None = None,
    ) -> Published:
        """Send a message to the sessions that subscribe to a topic, on all engines of the broker, if there is one.

        It is encoded once. May be called from any thread.

        Args:
            topic: Name of the topic, without wildcards.
            message: ``str`` is sent as text, an object with a buffer as binary.
            text: ``True`` to send it as text, which must be UTF-8; ``False`` to send it as binary.
            exclude: A session that does not get the message.
            key: Identifies the subject of the message. With ``policy="conflate"`` it replaces a queued message of the
                same key.

        Returns:
            The number of sessions of this engine that it is sent to. The attribute ``forwarded`` is whether the queue
            to the broker has accepted it.

        Raises:
            BlockingIOError: Queues are far above their limits, see :attr:`has_room`; or the queue to the broker is
                full, with ``broker_policy="raise"``.
            InvalidState: The engine has stopped.
            ValueError: The topic is invalid. The text names the error and its position.
        """

    def publish_many(
        self,
        items: Iterable[tuple[str, str | Buffer] | tuple[str, str | Buffer, str | None]],
        *,
        text: bool | None = None,
    ) -> Published:
        """Publish several messages in order, each like :meth:`publish`. Faster than single calls.

        Args:
            items: Topic and message of each item, or topic, message and key.
            text: ``True`` to send them as text, which must be UTF-8; ``False`` to send them as binary.

        Returns:
            The number of sends to sessions of this engine. The attribute ``forwarded`` is whether the queue to the
            broker has accepted every message.

        Raises:
            BlockingIOError: As for :meth:`publish`. ``characters_written`` is the index of the item.
            InvalidState: The engine has stopped.
            TypeError: An item is invalid.
            ValueError: A topic or message is invalid. The text of these exceptions begins with the index of the item.
                The items before it are published, and the others are not.
        """

    @property
    def sessions(self) -> list[Session]:
        """The open sessions, newest first, including those of ``echo`` and ``relay`` routes."""

    def session(self, number: int) -> Session | None:
        """Return the session with this number, or ``None`` if it is not open."""

    def subscribers(self, topic: str) -> int:
        """Return the number of sessions that subscribe to a topic, by name or by pattern."""

    def has_room(self, topic: str | None = None) -> bool:
        """Return whether there is room for more messages.

        There is no room while many sent messages have not reached the subscribers of the topic, or all sessions without
        a topic. Clients that read nothing, or far slower than the others, are ignored.

        Args:
            topic: Name of a topic, without wildcards.

        Raises:
            InvalidState: The engine has stopped.
            ValueError: The topic is invalid.
        """

    def wait_for_room(self, topic: str | None = None, timeout: float | None = None) -> bool:
        """Wait until there is room for more messages. Other threads run meanwhile.

        Args:
            topic: As for :meth:`has_room`.
            timeout: Seconds to wait, ``None`` for no limit.

        Returns:
            Whether there is room.

        Raises:
            InvalidState: The engine has stopped.
            ValueError: The topic is invalid.
        """

    def _capacity_waker(self) -> CapacityWaker: ...
    def _capacity_key(self) -> int: ...
    def _drain(self, code: int = 1001, reason: str = "") -> None: ...
    def _leave(self, code: int, seconds: float) -> None: ...
    def stop(self) -> None:
        """Stop immediately, and wait for the threads. Does nothing if the engine is not running.

        Clients get no close frame. To close the sessions, leave the ``with`` block or call :meth:`drain`.
        """

    def _operate(self, settings: EngineSettings) -> None: ...
    def _renew(
        self,
        cert: tuple[str | None, bytes],
        key: tuple[str | None, bytes],
        client_ca: Sequence[tuple[str | None, bytes]],
        alpn: Sequence[bytes],
        min_version: str | None,
        max_version: str | None,
    ) -> None: ...
    def _set_tls(
        self,
        tls: ServerTLS,
        cert: tuple[str | None, bytes],
        key: tuple[str | None, bytes],
        client_ca: Sequence[tuple[str | None, bytes]],
        alpn: Sequence[bytes],
        min_version: str | None,
        max_version: str | None,
    ) -> None: ...
    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The address of the ``metrics`` endpoint, or ``None`` if there is none."""

    def _begin_drain(self, timeout: float, batch: int, notice: float, code: int, reason: str) -> NativeDraining: ...
    def _handoff_signal(self) -> NativeHandoff | None: ...
    def _logs(self) -> NativeLogs: ...
    def metrics(self) -> str:
        """Return the values of :meth:`stats` as text in the format of Prometheus (OpenMetrics 1.0)."""

    def stats(self) -> dict[str, Any]:
        """Return metrics by name, and those of each thread under ``workers``.

        Durations, ``loop_lag`` and ``publish_latency``, are dictionaries: the number of measurements as ``count``,
        their sum as ``seconds``, upper bounds of the percentiles as ``p50``, ``p99`` and ``p999``, and as ``buckets``
        the number of measurements up to each bound in seconds and above the previous one. The last bucket has no bound.
        """

@final
class NativeDraining:
    """A graceful shutdown of an engine, which the caller advances step by step."""

    def step(self) -> float | None: ...
    @property
    def drained(self) -> tuple[int, int]: ...

@final
class NativeHandoff:
    """The shutdown of an engine after a handoff to another process."""

    def wait(self) -> float | None: ...

@final
class NativeLogs:
    """The log records of an engine."""

    def wake_fd(self) -> int: ...
    def take(self) -> list[tuple[int, str, int]]: ...
    @property
    def has_suppressed(self) -> bool: ...
