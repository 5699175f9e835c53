"""The native core: what messages pass through.

Private, except for the methods that :class:`wirespeed.ClientConnection`, :class:`wirespeed.sync.ClientConnection` and
:class:`wirespeed.sync.Ping` inherit or are.
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

from ._native_types import ConnectOptions, DeflateOptions, EngineSettings, Stats
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
    "EventsBell",
    "Handshake",
    "Invalid",
    "LoopState",
    "Message",
    "NativeDraining",
    "NativeEngine",
    "NativeHandoff",
    "NativeLogs",
    "NativePublisher",
    "NativeSelector",
    "Opened",
    "HandshakeLimiter",
    "Ping",
    "RoomBell",
    "Sent",
    "ServerOpening",
    "ServerSettings",
    "ServerTLS",
    "Session",
    "Undecoded",
    "__version__",
    "accept",
    "after_fork",
    "broadcast",
    "compression_memory",
    "origin_problem",
    "system_authorities",
]

__version__: str

def compression_memory(limit: int | None = None) -> int:
    """Set how many bytes connections may keep for compression, unless it is ``None``; return what it was before."""

def system_authorities() -> int:
    """Return a number that is another one once the files of the system's certificate authorities have changed."""

def origin_problem(origin: str) -> str | None:
    """Return why no browser sends exactly this as an Origin, ``None`` if one may."""

def accept(listening: int) -> tuple[int, Any] | None:
    """Accept a connection that waits at a listening socket of the internet, without blocking.

    Returns:
        Its descriptor, which does not block, and the address of the other end; ``None`` if there is none.
    """

@final
class Answer:
    """The answer of a server to an opening handshake, for its connection to send."""

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
class ServerSettings:
    """What all connections of a server share."""

    def __new__(
        cls,
        *,
        subprotocols: Sequence[str],
        deflate: DeflateOptions | None,
        max_size: int | None,
        max_fragment_size: int | None,
        max_fragments: int | None,
        queue_messages: int,
        queue_bytes: int,
        ping_interval: float | None,
        ping_timeout: float | None,
        close_timeout: float | None,
    ) -> ServerSettings: ...

@final
class HandshakeLimiter:
    """Who of the clients that are in the opening handshake goes first, by keys that the caller has for them.

    Times are seconds of a clock of the caller's. ``unread`` is called with a key, and says whether the client has sent
    what nobody has read yet.
    """

    PATIENCE: Final[float]
    GRACE: Final[float]
    BURST: Final[int]

    def __new__(cls, limit: int, patience: float, grace: float) -> HandshakeLimiter: ...
    def __len__(self) -> int: ...
    @property
    def is_over_limit(self) -> bool: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def room(self) -> int: ...
    def add(self, key: int, origin: str | bytes, now: float) -> None: ...
    def progress(self, key: int, now: float) -> bool: ...
    def remove(self, key: int) -> bool: ...
    def first(self) -> int | None: ...
    def companions(self, key: int) -> int: ...
    def next_victim(self, now: float, unread: Callable[[int], bool]) -> int | None: ...
    def next_victim_in(self, now: float) -> float | None: ...
    def delay(self, now: float, unread: Callable[[int], bool]) -> float: ...

@final
class ServerOpening:
    """From an accepted stream to a request for a WebSocket, without I/O of its own: bytes in, bytes out."""

    def __new__(cls, settings: ServerSettings, tls: ServerTLS | ssl.SSLContext | None = None) -> ServerOpening: ...
    @property
    def is_tls_handshaking(self) -> bool:
        """Whether the TLS handshake goes on."""

    @property
    def done(self) -> bool:
        """Whether the request is complete."""

    def feed(self, data: bytes) -> None:
        """Take bytes that were received. After an error, call :meth:`reject`, and send the output."""

    def reject(self, fields: Sequence[tuple[str, str]]) -> None:
        """Put the response to what is no request into the output; nothing if there is nobody to read it."""

    def feed_eof(self) -> None:
        """Take the end of the stream."""

    def take_output(self) -> bytes:
        """Return bytes to send now."""

    def finish(self) -> Opened:
        """Return what a connection is made of, which then answers the request."""

@final
class Handshake:
    """The opening handshake as a connection knows it, at either end; at a server's, up to its answer."""

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
    """A WebSocket whose opening handshake has succeeded: the argument of a connection's constructor, once."""

    def _adopt(self, fd: int) -> None: ...
    def _discard(self) -> None: ...

@final
class ConnectedSocket:
    """A stream socket that is connected, or is being. It is closed with this object, unless somebody takes it."""

    @staticmethod
    def begin(host: str, port: int, family: int) -> ConnectedSocket | None:
        """Begin to connect to a numeric address of a family, 0 for any; ``None`` if it is none."""

    @staticmethod
    def adopt(fd: int) -> ConnectedSocket:
        """Take over a descriptor that was detached."""

    def is_connected(self) -> bool:
        """Return whether it is; raise why it never will be."""

    def wait(self, timeout: float | None) -> int | None:
        """Wait until it is.

        Returns:
            0, or the number of the error of an attempt that has failed; ``None`` if the time is over.
        """

    def fileno(self) -> int:
        """Return the number of the descriptor."""

    def detach(self) -> int:
        """Give the descriptor to the caller."""

    def close(self) -> None:
        """Close it, unless somebody has taken it."""

@final
class ClientPlan:
    """What a client asks a server for, and how the connection is to behave, for any number of openings.

    Args:
        options: The options, in the form of the native core.

    Raises:
        TypeError, ValueError: They are wrong in themselves.
    """

    def __new__(cls, options: ConnectOptions) -> Self: ...

@final
class ClientOpening:
    """From a connected stream to a WebSocket.

    In this order: TLS with a proxy, the request for a tunnel (RFC 9110, section 9.3.6), TLS with the server, the
    opening handshake (RFC 6455, section 4.1). A method that raises has ended it.
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
        """Whether the server has agreed."""

    @property
    def is_tls_handshaking(self) -> bool:
        """Whether TLS is what is waited for."""

    def proceed(self, connected: ConnectedSocket) -> int:
        """Move what can be moved over a non-blocking socket.

        Returns:
            What the socket must be ready for then: 0 for nothing, it is done; 1 to be read from, 3 to be read from or
            written to.
        """

    def run(self, connected: ConnectedSocket, timeout: float | None) -> Opened:
        """Open the WebSocket over a socket, which is taken over, and blocks from then on."""

    def feed(self, data: bytes) -> None:
        """Take bytes that were received."""

    def take_output(self) -> bytes:
        """Return what is to be sent now; after an exception too."""

    @property
    def is_refused(self) -> bool:
        """Whether the server, or the proxy, has refused, and the body of its response is waited for."""

    def give_up(self) -> Exception | None:
        """End it, as nobody waits any longer; return the refusal that has come, its body as far as that has."""

    def finish(self, connected: ConnectedSocket | None = None) -> Opened:
        """Return the WebSocket that was opened; with its socket, which is taken over, if it is to have one."""

@final
class Ping:
    """A ping that is on its way; :meth:`ClientConnection.ping` returns it."""

    def wait(self, timeout: float | None = None) -> float:
        """Wait for the pong.

        The thread that waits receives for it, unless another one does; messages that arrive meanwhile are kept.

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
        """Address of this end, as ``socket.getsockname()`` returned it when the connection was opened."""

    @property
    def remote_address(self) -> Any:
        """Address of the other end, that of the proxy if there is one."""

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
            timeout: Seconds to wait, ``None`` for no limit. Nothing is lost when it passes: a message of which a part
                has arrived will be received later.
            decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` and ``False`` for always
                the one or the other; ``False`` saves the decoding of text.
            busy_poll: Seconds to poll the socket without sleeping first: lower latency for a busy core.

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
        """Receive all messages that were read; wait for the first if none was.

        What one read of the socket brings is read at once, up to 256 KiB: more may lie in the system's buffer.

        Args:
            limit: How many messages to return at most.
            timeout: Seconds to wait for the first message, ``None`` for no limit.
            decode: As for :meth:`recv`.

        Returns:
            One message at least, in the order of their arrival.

        Raises:
            TimeoutError: No message arrived in time.
            ConnectionClosed: The connection is closed.
            ValueError: ``limit`` is less than 1.
        """

    def __iter__(self) -> Self: ...
    def __next__(self) -> str | bytes:
        """Receive the next message; a clean close ends the iteration."""

    def send(
        self,
        message: str | Buffer | Iterable[str] | Iterable[Buffer],
        *,
        text: bool | None = None,
        compress: bool | None = None,
    ) -> None:
        """Send a message. Return when the operating system has taken all of it.

        Several threads may send at once: messages are not mixed. While the peer does not read, this waits, and receives
        meanwhile, so that two ends that both send do not wait for each other until ``max_queue`` is full: beyond it
        they do. An exception from a signal handler leaves the connection usable: the message is sent whole, with the
        next call.

        Args:
            message: ``str`` is sent as text; ``bytes``, ``bytearray``, ``memoryview`` and anything else with a buffer
                as binary. The items of an iterable, all of one kind, are sent as the fragments of one message.
            text: ``True`` to send bytes, which must be UTF-8, as text; ``False`` to send ``str`` as binary.
            compress: ``False`` to send this message uncompressed, ``True`` to compress it whatever its size; ``None``
                to compress it from the threshold on. Without permessage-deflate it has no effect.

        Raises:
            ConnectionClosed: The connection is closed.
            ConcurrencyError: Another thread is in the middle of a message in fragments.
            TypeError: ``message`` has another type.
            UnicodeEncodeError: ``message`` contains lone surrogates.
            UnicodeDecodeError: ``text`` is ``True`` and ``message`` is not UTF-8.
        """

    def send_many(
        self, messages: Iterable[str | Buffer], *, text: bool | None = None, compress: bool | None = None
    ) -> None:
        """Send many messages, with one system call for every 128 KiB. Return when the operating system has taken them.

        An exception from a signal handler leaves the connection usable. What was taken out of ``messages`` is sent
        whole then, with the next call; only the message that was taken last may not be sent at all.

        Args:
            messages: Each as for :meth:`send`, without fragments.
            text: As for :meth:`send`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: A message has another type. The messages before it are sent.
        """

    def flush(self) -> None:
        """Return when the operating system has taken everything.

        It has, when a call that sends returns; after an exception from a signal handler it may not.

        Raises:
            ConnectionClosed: The connection is closed.
        """

    def ping(self, data: str | Buffer | None = None) -> Ping:
        """Send a ping: RFC 6455, section 5.5.2.

        Args:
            data: Payload, 125 bytes at most; ``None`` for a random one.

        Returns:
            Something to wait on, which then tells the latency.

        Raises:
            ConnectionClosed: The connection is closed.
            ConcurrencyError: A ping with the same payload was not answered yet.
            ProtocolError: ``data`` is too long.
        """

    def pong(self, data: str | Buffer = b"") -> None:
        """Send a pong that no ping asked for: RFC 6455, section 5.5.3. Pings are answered without it.

        Args:
            data: Payload, 125 bytes at most.

        Raises:
            ConnectionClosed: The connection is closed.
            ProtocolError: ``data`` is too long.
        """

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Make the closing handshake, RFC 6455, section 7.1.2, and close the socket.

        Wait for the server for ``close_timeout`` at most. Messages that have arrived can be received afterwards; those
        for which ``max_queue`` has no room are dropped. On a connection that is closed this does nothing.

        Args:
            code: Close code: 1000 to 1003, 1007 to 1014, 3000 to 4999, or 1005 for a close frame without a code.
            reason: Close reason, 123 bytes of UTF-8 at most.

        Raises:
            ProtocolError: ``code`` or ``reason`` must not be sent.
        """

    def _wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until the connection is over, without doing anything for that; return whether it is.

        Raises:
            ConcurrencyError: Messages fill the queue, no other thread receives, and ``timeout`` is ``None``.
        """

    def abort(self) -> None:
        """Close the socket at once, without a closing handshake. What was not sent is lost. Never waits."""

    @property
    def latency(self) -> float:
        """Seconds between the last ping that was answered and its pong, keepalive included; 0 before the first."""

    def fileno(self) -> int:
        """Return the number of the socket's descriptor, -1 once it is closed. Do not read from it or write to it."""

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
        queue: tuple[tuple[int, int], tuple[int, int]],
        write_limit: tuple[int, int],
        yield_after: int,
        local_address: Any = None,
        remote_address: Any = None,
        coalesce: bool = True,
        listener: object | None = None,
        zero_copy: bool = False,
        server: Any = None,
        **_kwargs: Any,
    ) -> Self: ...
    @property
    def id(self) -> UUID:
        """A UUID, for logs."""

    @property
    def logger(self) -> LoggerLike:
        """The logger given to ``connect``."""

    @property
    def local_address(self) -> Any:
        """Address of this end, as ``socket.getsockname()`` returned it when the connection was opened."""

    @property
    def remote_address(self) -> Any:
        """Address of the other end, that of the proxy if there is one."""

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

        Several tasks may receive at once: first come, first served. Cancelling this loses no message.

        Args:
            decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` and ``False`` for always
                the one or the other; ``False`` saves the decoding of text.

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
        """Receive all messages that were read; wait for the first if none was.

        What one read of the socket brings is read at once, up to 256 KiB: more may lie in the system's buffer.

        Args:
            limit: How many messages to return at most.
            decode: As for :meth:`recv`.

        Returns:
            One message at least, in the order of their arrival.

        Raises:
            ConnectionClosed: The connection is closed.
            ConcurrencyError: A message is being received by :meth:`recv_streaming`.
            RuntimeError: Messages go to a listener.
            ValueError: ``limit`` is less than 1.
        """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, str | bytes]:
        """Receive the next message; a clean close ends the iteration."""

    def send(
        self,
        message: str | Buffer | Iterable[str] | Iterable[Buffer] | AsyncIterable[str] | AsyncIterable[Buffer],
        *,
        text: bool | None = None,
        compress: bool | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Send a message.

        A single message is queued by the call itself, if there is room. With more than ``write_limit`` queued, awaiting
        it waits until that is down to the low mark. Cancelling it splits no frame: a message is sent whole, or not at
        all if it had to wait for room.

        Args:
            message: ``str`` is sent as text; ``bytes``, ``bytearray``, ``memoryview`` and anything else with a buffer
                as binary. The items of an iterable or asynchronous iterable, all of one kind, are sent as the fragments
                of one message; other messages wait until it is complete.
            text: ``True`` to send bytes, which must be UTF-8, as text; ``False`` to send ``str`` as binary.
            compress: ``False`` to send this message uncompressed, ``True`` to compress it whatever its size; ``None``
                to compress it from the threshold on. Without permessage-deflate it has no effect.

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
            BlockingIOError: More than ``write_limit`` is queued, or others wait for their turn. A listener's
                ``on_writable`` tells when there is room again.
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
        """Send many messages, with one system call for every 64 KiB. Other tasks' messages may come in between.

        Args:
            messages: Each as for :meth:`send`, without fragments.
            text: As for :meth:`send`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: A message has another type. The messages before it are sent.
        """

    def abort(self) -> None:
        """Close the socket at once, without a closing handshake. What was not sent is lost. Never waits."""

    @property
    def latency(self) -> float:
        """Seconds between the last ping that was answered and its pong, keepalive included; 0 before the first."""

    @property
    def io_backend(self) -> Literal["fd", "transport"]:
        """How it uses its socket: as a descriptor that the loop watches, or through a transport of the loop."""

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
        """Return when every byte that was sent before has been handed to the kernel.

        Raises:
            ConnectionClosed: It could not be.
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
    """What the connections of one event loop share."""

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> LoopState:
        """Return that of a loop, made when it is first asked for."""

    def _watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call a function whenever a descriptor can be read from, until it is ignored or a connection takes it over."""

    def _ignore(self, fd: int) -> None:
        """Watch a descriptor no longer."""

    def _ready(self, fd: int, to_read: bool, to_write: bool) -> Awaitable[None] | None:
        """Return what waits until a descriptor is ready; ``None`` if the loop must be asked to watch it.

        It stays watched, until it is ignored or a connection takes it over.
        """

@final
class NativeSelector:
    """What :class:`wirespeed.asyncio.loop.Selector` is made of. Linux only."""

    def __new__(cls, busy_poll: float = 0.0) -> Self: ...
    def attach(self, ready: collections.deque[Any], scheduled: list[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Say whose selector this is."""

    def fileno(self) -> int:
        """Return the number of the epoll descriptor."""

    def register(self, fd: int, events: int, key: selectors.SelectorKey) -> None:
        """Watch a descriptor."""

    def modify(self, fd: int, events: int, key: selectors.SelectorKey) -> None:
        """Change what is watched of it."""

    def unregister(self, fd: int) -> None:
        """Watch it no longer."""

    def get_key(self, fd: int) -> selectors.SelectorKey:
        """Return what it was registered with."""

    def map(self) -> dict[int, selectors.SelectorKey]:
        """Return all keys: the live dict."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until something is ready; serve connections meanwhile."""

    def close(self) -> None:
        """Close the epoll descriptor."""

def after_fork() -> None:
    """Forget the masking keys that were drawn before a fork."""

def broadcast(
    connections: Iterable[Any], message: str | Buffer, text: bool | None, slow: str
) -> tuple[int, list[tuple[AsyncConnection, str]]]:
    """Send a message to those of the connections that are open; see :func:`wirespeed.broadcast`.

    Returns:
        How many these are, and which of the others did not get it for what reason.
    """

@final
class JWT:
    """How the tokens of clients are verified (RFC 7519), before they become sessions.

    A token with a claim ``topics``, ``{"allow": [...], "deny": [...]}``, may subscribe to what these patterns
    allow, and ``deny`` wins; ``{user}`` in them stands for the claim ``sub``. A session ends with its token, by code
    1008.

    Args:
        key: The secret for ``HS...``, or the public key for the others as PEM.
        algorithms: One or several of HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384,
            ES512 and EdDSA, of the same family. ``Ed25519`` is another name for EdDSA.
        jwks: Instead of a key, the path of a set of keys (RFC 7517), which is read again when the file has changed.
        previous_key: A key to accept besides, for as long as tokens that it has signed are still about.
        key_id: The ``kid`` that tokens must have.
        previous_key_id: That of the previous key.
        issuer: The ``iss`` that tokens must have.
        audience: Who we are: one or several, of which tokens must have one in ``aud``.
        leeway: Seconds that the issuer's clock may differ from ours, 30 by default.
        required: Claims that tokens must have; ``exp`` and ``sub`` by default.
        max_token: Bytes of a token at most, 8,192 by default.
        cookie: Name of a cookie to look in, first.
        header: Whether to look in ``Authorization: Bearer``, next.
        query: Name of a parameter of the query to look in, then. It will be in the logs of proxies.
        subprotocol: Prefix of a subprotocol that is the token, last: what browsers can send without a cookie. An engine
            must offer another subprotocol beside it: without one that is chosen browsers fail the connection.

    Raises:
        OSError: The set of keys cannot be read.
        TypeError: There is no key, or there are two.
        ValueError: The key is none for the algorithms, or too short, or a number is out of range; the text names the
            argument.
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
    """A client of an engine. It may be kept, and used from any thread, also after its end.

    Attributes:
        id: A number that no other session of the engine has had, or will.
        path: The path of the request, not decoded.
        query: What follows its question mark, not decoded; empty if there is nothing.
        remote_address: Address and port of the client; ``None`` at a Unix socket.
        subprotocol: The subprotocol that was chosen.
        route: The path as it was given to :meth:`Engine.route`, ``"/feed/{symbol}"``; ``None`` where none was.
        params: What the path of the request has for its names, a new ``dict`` each time: percent-decoded UTF-8, or the
            text as it is where that is none.
        user: Who it is by its token, the claim ``sub``; ``None`` where no token is asked for.
        claims: What else its token says, a new ``dict`` each time; ``None`` likewise.
        is_open: Whether messages are accepted for it.
        queued: Bytes that wait because the client does not read as fast, a moment ago.
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
        """Whether there is room for more: less than half of ``outbox_limit`` waits, and the session is open."""

    def refresh(self, token: str) -> None:
        """Go on with another token of the same user: by what the application's protocol has for it.

        It is verified as the one before was, by what is asked for at the session's path. :attr:`claims`, what the
        session may do, and when it ends, are as it says from now on; what :meth:`allow` and :meth:`deny` have added
        stays, and what the session subscribes to already it goes on to get.

        Args:
            token: The token, without ``Bearer``.

        Raises:
            InvalidState: The session is closed.
            PermissionError: The token is not good, or of another user (``sub``), or of none; the text says why. Nothing
                changes.
            RuntimeError: Nobody is asked for a token where the session is.
        """

    def stats(self) -> dict[str, Any]:
        """Return what was counted of the session; of one that is over, at its end.

        ``messages_received`` and ``bytes_received``, ``messages_sent`` and ``bytes_sent``, as far as they were handed
        to the connection; ``queued_bytes``, which wait because the client does not read as fast; ``messages_dropped``
        for that reason, ``messages_limited`` because it sends too many, and ``messages_denied``, of relays;
        ``subscriptions``, how many; ``open_seconds``, how long it has been open. Bytes are those of payloads.

        The thread that serves the session is asked, and waited for: as a rule less than a millisecond.

        Raises:
            InvalidState: The engine stops at this moment.
            TimeoutError: The thread has not answered for five seconds.
        """

    def wait_for_room(self, timeout: float | None = None) -> bool:
        """Wait until there is room for more. Other threads go on meanwhile.

        Args:
            timeout: Seconds; ``None``: any time.

        Returns:
            Whether there is.

        Raises:
            InvalidState: The session is closed.
        """

    def _room_bell(self) -> RoomBell: ...
    def _room_key(self) -> int: ...
    def send(self, message: str | Buffer, text: bool | None = None) -> Sent:
        """Send a message: it leaves after everything that was sent to the session before, by whatever call.

        Args:
            message: ``str`` is sent as text, anything with a buffer as binary.
            text: Send it as text, which must be UTF-8, or as binary, whatever it is.

        Returns:
            Whether there is room for more. Whoever can wait should, if not: on an event loop by awaiting what is
            returned, in a thread by :meth:`wait_for_room`.

        Raises:
            BlockingIOError: Far more waits to be sent than may.
            InvalidState: The session is closed.
            TypeError: It is neither ``str`` nor has it a buffer.
            UnicodeError: It is no UTF-8.
        """

    def subscribe(self, topic: str) -> bool:
        """Subscribe the session to what is published from now on.

        Args:
            topic: A topic, segments between dots as in ``"prices.EURUSD"``, 255 bytes at most; or a pattern, in which
                ``*`` stands for one segment, and ``>`` at the end for one or more.

        Returns:
            Whether it did not subscribe to it before.

        Raises:
            InvalidState: The session is closed.
            PermissionError: It may not: see :meth:`may_subscribe`.
            RuntimeError: It subscribes to as many topics as it may, ``max_subscriptions``.
            ValueError: It is no topic; the text says what is wrong and where.
        """

    def unsubscribe(self, topic: str) -> bool:
        """End that.

        Returns:
            Whether it did subscribe to it.

        Raises:
            ValueError: It is no topic.
        """

    def allow(self, *patterns: str, subscribe: bool = True, publish: bool = True) -> None:
        """Allow the session what matches these patterns, beside what its token allows.

        Args:
            *patterns: As for :meth:`subscribe`; ``{user}`` stands for the ``sub`` of the token, as one segment.
            subscribe: Whether it may subscribe to it.
            publish: Whether it may publish on it.

        Raises:
            ValueError: One of them is no pattern; nothing has changed.
        """

    def deny(self, *patterns: str, subscribe: bool = True, publish: bool = True) -> None:
        """Deny it, whatever allows it, before or later. What the session subscribes to already it goes on to get.

        Args:
            *patterns: As for :meth:`allow`, as are the others.
            subscribe: Whether it may not subscribe to it.
            publish: Whether it may not publish on it.

        Raises:
            ValueError: One of them is no pattern; nothing has changed.
        """

    def may_subscribe(self, topic: str) -> bool:
        """Return whether the session may subscribe to a topic, or to all that match a pattern.

        Raises:
            ValueError: It is no topic.
        """

    def may_publish(self, topic: str) -> bool:
        """Return whether the session may publish on a topic. Who calls :meth:`Engine.publish` decides that itself.

        Raises:
            ValueError: It is no topic.
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
        """Send a message to the sessions that subscribe to a topic, if this one may publish on it.

        Args:
            topic: Its name, without wildcards.
            message: ``str`` is sent as text, anything with a buffer as binary.
            text: Send it as text, which must be UTF-8, or as binary, whatever it is.
            exclude_self: Whether this session does not get it, if it subscribes to the topic.
            key: What it is about, for ``policy="conflate"``.

        Returns:
            How many sessions it goes to.

        Raises:
            BlockingIOError: Far more waits to be sent than may: see ``engine.has_room``.
            InvalidState: The engine has stopped.
            PermissionError: It may not: see :meth:`may_publish`.
            ValueError: It is no topic; the text says what is wrong and where.
        """

    @property
    def topics(self) -> list[str]:
        """What it subscribes to, in no order."""

    def _set_reading(self, reads: bool) -> None: ...
    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the session, after everything that was sent to it before. Again, or after its end: nothing.

        Args:
            code: Close code (RFC 6455 7.4).
            reason: What is said beside, 123 bytes of UTF-8 at most.

        Raises:
            ProtocolError: The code must not be sent, or the reason is too long.
        """

@final
class Sent:
    """What :meth:`Session.send` returns: true if there is room for more, and to be awaited for it.

    Awaited, it is whether there is: ``False`` says that the session has ended.
    """

    def __bool__(self) -> bool: ...
    def __await__(self) -> Generator[Any, None, bool]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> None: ...

@final
class RoomBell:
    """A descriptor that is readable once there may be room, until it is closed."""

    def fileno(self) -> int: ...
    def silence(self) -> None: ...
    def close(self) -> None: ...

@final
class EventsBell:
    """A descriptor that is readable once there is something to take; closed, it passes on what it was told."""

    def fileno(self) -> int: ...
    def silence(self) -> None: ...
    def close(self) -> None: ...
    def wait(self) -> bool:
        """Have it ring once; false: there may be something now, and it will not."""

@final
class Connected:
    """A session is open.

    Attributes:
        session: Whose.
    """

    __match_args__ = ("session",)
    @property
    def session(self) -> Session: ...

@final
class Message:
    """A message came.

    Attributes:
        session: Whose.
        data: Text as ``str``, binary as ``bytes``; what the codec of its route makes of it, if that has one.
    """

    __match_args__ = ("session", "data")
    @property
    def session(self) -> Session: ...
    @property
    def data(self) -> Any: ...

@final
class Invalid:
    """A message came that the codec of its route does not understand.

    Attributes:
        session: Whose; it is closed with code 1007, unless its route keeps such.
        data: Text as ``str``, binary as ``bytes``.
        error: Why, in the codec's words.
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
    """Events of all sessions, those of each in their order: a sequence, of which each is made when it is reached.

    An event that is reached twice is two objects.
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
    """A message that its codec has not been given yet: as large as it came, where what is made of it may be larger."""

    @property
    def session(self) -> Session: ...
    @property
    def data(self) -> bytes: ...
    def decode(self) -> Message | Invalid: ...

@final
class BatchIterator:
    """The events of a batch, one after the other."""

    def __iter__(self) -> BatchIterator: ...
    def __next__(self) -> Connected | Message | Invalid | Disconnected: ...
    def __length_hint__(self) -> int: ...

@final
class Disconnected:
    """A session is over; nothing of it follows.

    Attributes:
        session: Whose.
        code: The close code that the client sent; 1005 if its close frame had none, 1006 without a close frame.
        reason: The reason that the client gave.
        failure: Why the connection failed, in words; ``None`` if it did not.
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
    """How many clients of an engine there may be, and what they may send."""

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
    def _room_bell(self) -> RoomBell: ...
    def _room_key(self) -> int: ...
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
        """Where clients connect to: address and port, or the path of a Unix socket."""

    @property
    def workers(self) -> int:
        """Threads that serve."""

    def _take(self, max_events: int, timeout: float | None) -> Batch | None: ...
    def _set_codecs(
        self, codecs: Sequence[tuple[Callable[[bytes], Any] | None, Callable[[bytes], Any] | None, bool]]
    ) -> None: ...
    def _events_bell(self) -> EventsBell: ...
    def _ring(self) -> None: ...
    def broadcast(self, message: str | Buffer, *, text: bool | None = None, exclude: Session | None = None) -> bool:
        """Send a message to all sessions that are open. It is encoded once.

        Args:
            message: ``str`` is sent as text, anything with a buffer as binary.
            text: Send it as text, which must be UTF-8, or as binary, whatever it is.
            exclude: A session that does not get it.

        Returns:
            Whether there is room for more: whoever can wait should, if not, by :meth:`wait_for_room`.

        Raises:
            InvalidState: The engine has stopped.
            RuntimeError: It has not started.
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

        It is encoded once; from any thread.

        Args:
            topic: Its name, without wildcards.
            message: ``str`` is sent as text, anything with a buffer as binary.
            text: Send it as text, which must be UTF-8, or as binary, whatever it is.
            exclude: A session that does not get it.
            key: What it is about: with ``policy="conflate"`` it replaces the message of the same key that a session
                waits for.

        Returns:
            How many sessions of this engine it goes to; it has an attribute ``forwarded``, whether the queue to the
            broker has taken it.

        Raises:
            BlockingIOError: Far more waits to be sent than may: see :attr:`has_room`; or there is no room in the queue
                to the broker, with ``broker_policy="raise"``.
            InvalidState: The engine has stopped.
            ValueError: It is no topic; the text says what is wrong and where.
        """

    def publish_many(
        self,
        items: Iterable[tuple[str, str | Buffer] | tuple[str, str | Buffer, str | None]],
        *,
        text: bool | None = None,
    ) -> Published:
        """Publish several messages, in their order, each as :meth:`publish` does: sooner than by as many calls.

        Args:
            items: Topic and message of each, or topic, message and key.
            text: Send them as text, which must be UTF-8, or as binary, whatever they are.

        Returns:
            To how many sessions of this engine they go in all; its attribute ``forwarded`` says whether the queue to
            the broker has taken each of them.

        Raises:
            BlockingIOError: As for :meth:`publish`; ``characters_written`` is the place of the item.
            InvalidState: The engine has stopped.
            TypeError: An item is none.
            ValueError: There is no such topic or message. The text of each of these begins with the place of the item:
                those before it are published, it and those after it are not.
        """

    @property
    def sessions(self) -> list[Session]:
        """The sessions that are open at this moment, the newest first, those of ``echo`` and ``relay`` as well."""

    def session(self, number: int) -> Session | None:
        """Return the session with this number; ``None``: it is not open."""

    def subscribers(self, topic: str) -> int:
        """Return how many sessions subscribe to a topic, by its name or by wildcards."""

    def has_room(self, topic: str | None = None) -> bool:
        """Tell whether there is room for more.

        There is none while much of what was sent has yet to reach clients that read: to those who subscribe to the
        topic, or, without one, to everybody. Who does not read, or far slower than the others, is not waited for.

        Args:
            topic: A topic, without wildcards.

        Raises:
            InvalidState: The engine has stopped.
            ValueError: It is no topic.
        """

    def wait_for_room(self, topic: str | None = None, timeout: float | None = None) -> bool:
        """Wait for that. Other threads go on meanwhile.

        Args:
            topic: As for :meth:`has_room`.
            timeout: Seconds; ``None``: any time.

        Returns:
            Whether there is room.

        Raises:
            InvalidState: The engine has stopped.
            ValueError: It is no topic.
        """

    def _room_bell(self) -> RoomBell: ...
    def _room_key(self) -> int: ...
    def _drain(self, code: int = 1001, reason: str = "") -> None: ...
    def _leave(self, code: int, seconds: float) -> None: ...
    def stop(self) -> None:
        """End everything now, and wait for the threads. Again, or before the start: nothing.

        Clients get no close frame: leave the ``with`` block, or :meth:`drain`, to close the sessions.
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
        """Where ``metrics`` is; ``None`` without."""

    def _begin_drain(self, timeout: float, batch: int, notice: float, code: int, reason: str) -> NativeDraining: ...
    def _handed_over(self) -> NativeHandoff | None: ...
    def _logs(self) -> NativeLogs: ...
    def metrics(self) -> str:
        """Return what :meth:`stats` does as text, in the format that Prometheus reads (OpenMetrics 1.0)."""

    def stats(self) -> dict[str, Any]:
        """Return figures by name; those of each thread under ``workers``.

        Durations, ``loop_lag`` and ``publish_latency``, are dictionaries: how many were measured as ``count``, their
        sum as ``seconds``, as ``p50``, ``p99`` and ``p999`` a bound that so many of them do not exceed, and as
        ``buckets`` how many there were up to each bound, in seconds, and above the one before; the last has none.
        """

@final
class NativeDraining:
    """An engine that ends, a step at a time."""

    def step(self) -> float | None: ...
    @property
    def drained(self) -> tuple[int, int]: ...

@final
class NativeHandoff:
    """The end of an engine that another one takes over from."""

    def wait(self) -> float | None: ...

@final
class NativeLogs:
    """What an engine has to be logged."""

    def bell(self) -> int: ...
    def take(self) -> list[tuple[int, str, int]]: ...
    @property
    def has_left_out(self) -> bool: ...
