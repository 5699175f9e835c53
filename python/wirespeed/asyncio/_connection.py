"""The connection of event loops.

What a message passes through is native; here is what is called seldom.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import socket as socket_module
import sys
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from .._annotations import Self
from .._connection import codec
from .._connection.construction import construct
from .._connection.state import State
from .._connection.status import ConnectionStatus
from .._native import AsyncConnection, Opened
from .._net.addresses import ends_of
from ..close_codes import CloseCode
from ..exceptions import ConcurrencyError, ConnectionClosed, ConnectionClosedOK
from ..typing import BytesLike, Data, DataLike
from ._leaving import can_suspend, leave
from ._sockets import ignore, watches_descriptors
from ._yielding import is_turn_due, yield_to_loop

if TYPE_CHECKING:
    from .._options.client import AsyncClientOptions
    from .._options.common import AsyncOptions
    from ._opening import Opening

__all__ = ["ClientConnection", "Connection", "attach", "choose_io_backend", "establish", "native_arguments"]


class Connection(ConnectionStatus, AsyncConnection):
    """A WebSocket connection on an event loop.

    It is an asynchronous context manager that closes the connection, with code 1000, or 1011 after an exception.
    Iterating over it yields messages until the connection is closed; a clean close, with code 1000 or 1001, ends the
    iteration.

    Any number of tasks may receive, first come first served, and send. Cancelling a call loses no message, splits no
    frame, and leaves the connection usable. It belongs to its event loop: other threads use
    ``loop.call_soon_threadsafe`` or ``asyncio.run_coroutine_threadsafe``.

    Attributes:
        id: A UUID, for logs.
        logger: The logger given to ``connect``.
        local_address: Address of this end, as ``socket.getsockname()`` returned it when the connection was opened.
        remote_address: Address of the other end, that of the proxy if there is one.
    """

    def __init__(self, opened: Opened, **options: Any) -> None:
        # All of it is native: as long as nobody adds attributes, the connection has no dict.
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        code = CloseCode.NORMAL_CLOSURE if exc_type is None else CloseCode.INTERNAL_ERROR
        if exc_type is GeneratorExit and not can_suspend(sys._getframe()):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                leave(self, code)
            return
        await self.close(code)

    def __del__(self) -> None:
        try:
            # Most are; one whose constructor raised has no native part.
            over = self._is_over
        except AttributeError:
            return
        # Late in the end of the interpreter the names of this module are gone, and the system closes what is open.
        if over or contextlib is None:
            return
        try:
            # One that is closing has told so by an exception: no second word. After a fork, the parent closes.
            if self._state == State.OPEN and not self._is_forked:
                with contextlib.suppress(ImportError):  # the interpreter ends: nobody would be told
                    warnings.warn(f"unclosed connection {self!r}", ResourceWarning, source=self, stacklevel=1)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                leave(self, CloseCode.GOING_AWAY)

    # What it is.

    def fileno(self) -> int:
        """Return the number of the socket's descriptor, -1 once it is closed."""
        transport = self._transport
        if transport is None:
            return self._fileno()
        sock = transport.get_extra_info("socket")
        return -1 if sock is None or self._state == State.CLOSED else int(sock.fileno())

    # Receiving.

    def __aiter__(self) -> AsyncIterator[Data]:  # type: ignore[override]
        # The native iterator does not call recv, which a subclass may have overridden, or a program replaced.
        return self if self.recv == AsyncConnection.recv.__get__(self) else self._received()

    async def _received(self) -> AsyncGenerator[Data, None]:
        with contextlib.suppress(ConnectionClosedOK):
            while True:
                yield await self.recv()

    @overload
    def recv_streaming(self, decode: Literal[True]) -> AsyncGenerator[str, None]: ...
    @overload
    def recv_streaming(self, decode: Literal[False]) -> AsyncGenerator[bytes, None]: ...
    @overload
    def recv_streaming(self, decode: bool | None = None) -> AsyncGenerator[Data, None]: ...
    async def recv_streaming(self, decode: bool | None = None) -> AsyncGenerator[Data, None]:
        """Receive the next message fragment by fragment, as the peer sent it.

        Leaving the iteration early drops the rest of the message.

        Args:
            decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` and ``False`` for always
                the one or the other.

        Yields:
            The fragments. Text is cut between characters, so a fragment may be shorter than it was on the wire.

        Raises:
            ConnectionClosed: The connection was closed before the end of the message.
            ConcurrencyError: Another task is in this method.
        """
        if self._streaming_receiver:
            raise ConcurrencyError("recv_streaming is running in another place already")
        # A signal handler may raise when the first fragment is taken, and not yet known here. Where none is, there is
        # nothing to drop.
        fin = False
        try:
            self._streaming_receiver = True
            decoder = None
            while True:
                fragment, is_text, fin = await self._recv_fragment()
                if decode is None:
                    decode = is_text
                if not decode:
                    yield fragment
                else:
                    if decoder is None:
                        decoder = codecs.getincrementaldecoder("utf-8")()
                    yield decoder.decode(fragment, fin)
                if fin:
                    return
        finally:
            self._streaming_receiver = False
            if not fin:
                self._discard_message()

    # Sending.

    async def _send_fragments(
        self,
        message: Iterable[DataLike] | AsyncIterable[DataLike],
        text: bool | None,
        compress: bool | None,
    ) -> None:
        """Send the items of an iterable as the fragments of one message."""
        if isinstance(message, Mapping) or hasattr(message, "keys"):
            raise TypeError("message must be str, bytes-like or an iterable of these, not a mapping")
        if not isinstance(message, (Iterable, AsyncIterable)):
            raise TypeError(f"message must be str, bytes-like or an iterable of these, not {type(message).__name__}")
        if is_turn_due():
            await yield_to_loop()
        if self._state != State.OPEN:
            await self._room()  # it raises, and nothing is taken
        kind: bool | None = None
        begun = False
        try:
            async for fragment in _items(message):
                if not isinstance(fragment, (str, bytes, bytearray, memoryview)) and not _is_buffer(fragment):
                    raise TypeError(f"fragments must be str or bytes-like, not {type(fragment).__name__}")
                if not begun:
                    # Its turn begins here: the first one may take long to come, and others may send meanwhile.
                    await self._room()
                    self._begin_fragments()
                    begun = True
                is_text = isinstance(fragment, str) if text is None else text
                if kind is not None and kind != is_text:
                    raise TypeError("fragments must be all str or all bytes-like")
                _, sent = self._send_fragment(fragment, kind is None, False, text, compress)
                kind = is_text
                await sent
                if is_turn_due():
                    await yield_to_loop()
            if kind is not None:
                _, sent = self._send_fragment("" if kind else b"", False, True, None, None)
                kind = None
                await sent
        except BaseException:
            # The message cannot be completed, and nothing else can be sent before it is: as in the websockets
            # library.
            if kind is not None:
                with contextlib.suppress(Exception):
                    try:
                        self._begin_close(CloseCode.INTERNAL_ERROR, "error in fragmented message")
                    except RuntimeError:
                        # The coroutine ends in another thread, perhaps the collector's.
                        self._leave(CloseCode.INTERNAL_ERROR)
            raise
        finally:
            if begun:
                self._end_fragments()

    async def _send_many_async(
        self, messages: AsyncIterable[DataLike], text: bool | None, compress: bool | None
    ) -> None:
        iterator = messages.__aiter__()
        while True:
            # Before the next message is taken out: it could not be put back.
            await self._room()
            try:
                message = await iterator.__anext__()
            except StopAsyncIteration:
                break
            await self.send(message, text=text, compress=compress)
        await self.flush()

    # They are no coroutines themselves, what `send` returns is awaited: one object less for each message.
    def send_json(self, value: Any, *, compress: bool | None = None) -> Coroutine[Any, Any, None]:
        """Send a value as JSON, in a text message. Needs ``wirespeed[codecs]``.

        Args:
            value: What msgspec can encode: builtin types, dataclasses, ``msgspec.Struct``, datetimes and more.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value has no JSON form.
        """
        return self.send(codec.JSON.encode(value), text=True, compress=compress)

    async def recv_json(self, type: Any = Any) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as JSON. Needs ``wirespeed[codecs]``.

        Args:
            type: What it must be: any type that msgspec knows.

        Raises:
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message is not of that type.
            msgspec.DecodeError: The message is not JSON.
        """
        decode = codec.JSON.decoder(type)
        return decode(await self.recv(decode=False))

    def send_msgpack(self, value: Any, *, compress: bool | None = None) -> Coroutine[Any, Any, None]:
        """Send a value as MessagePack, in a binary message. Needs ``wirespeed[codecs]``.

        Args:
            value: As for :meth:`send_json`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value has no MessagePack form.
        """
        return self.send(codec.MSGPACK.encode(value), compress=compress)

    async def recv_msgpack(self, type: Any = Any) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as MessagePack. Needs ``wirespeed[codecs]``.

        Args:
            type: As for :meth:`recv_json`.

        Raises:
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message is not of that type.
            msgspec.DecodeError: The message is not MessagePack.
        """
        decode = codec.MSGPACK.decoder(type)
        return decode(await self.recv(decode=False))

    # Control frames.

    async def ping(self, data: str | BytesLike | None = None) -> Awaitable[float]:
        """Send a ping.

        Args:
            data: Payload, 125 bytes at most; random by default.

        Returns:
            A future of the latency in seconds, done when the pong arrives. It need not be awaited::

                latency = await (await ws.ping())

        Raises:
            ConnectionClosed: The connection is closed; the future raises it too.
            ConcurrencyError: A ping with the same data is still unanswered.
        """
        await self._control_room()
        return self._ping(data)

    async def pong(self, data: str | BytesLike = b"") -> None:
        """Send a pong that nobody asked for; pings are answered without it.

        Args:
            data: Payload, 125 bytes at most.

        Raises:
            ConnectionClosed: The connection is closed.
        """
        await self._control_room()
        self._pong(data)

    async def _control_room(self) -> None:
        if is_turn_due():
            await yield_to_loop()
        if self._state == State.CONNECTING:
            raise RuntimeError("the opening handshake is not complete: nothing can be sent or received yet")
        if self._state != State.OPEN:
            # It raises how the connection ended, once it has.
            await self.wait_closed()
            raise self._closed_error()
        # Not by the turn of messages, of which one may be under way in fragments.
        await self._drained()
        while self._is_mid_frame:
            await self._room()

    # Closing.

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the connection: RFC 6455, section 7.1.2. Return when it is closed, within ``close_timeout``.

        Messages that arrived before can still be received. Closing a closed connection does nothing.

        Args:
            code: Close code.
            reason: Close reason, 123 bytes of UTF-8 at most.

        Raises:
            ProtocolError: The code, or the reason, cannot be sent.
        """
        self._begin_close(code, reason)
        await self._wait_for_end()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed.

        Raises:
            Exception: What a method of the listener has raised.
        """
        await self._wait_for_end()
        if self._listener_error is not None:
            raise self._listener_error

    def _tell_listener_error(self, error: Exception) -> None:
        """Log that a method of the listener has raised; called when it has, before the connection is closed for it."""
        if isinstance(error, ConnectionClosed) and error._origin == self._origin:
            # It ended while there were messages to tell of, which the listener has answered: as for a handler, that is
            # its own business, and not a line in the log for each client that goes so.
            self.logger.debug("listener met the end of its connection (%s)", self._label, exc_info=error)
            return
        self.logger.error("listener failed (%s)", self._label, exc_info=error)

    async def _wait_for_end(self) -> None:
        future = self._closed_future()
        if future is not None:
            await future
        elif is_turn_due():
            await yield_to_loop()


class ClientConnection(Connection):
    """The connection of a client, made by :func:`wirespeed.connect`."""


def native_arguments(options: AsyncOptions) -> dict[str, Any]:
    """Return the arguments of a connection's constructor that options determine.

    Args:
        options: Of a client or a server.
    """
    return {
        "zero_copy": options.zero_copy,
        "queue": _queue(options.max_queue, options.max_queue_bytes),
        "write_limit": _marks(options.write_limit),
        "coalesce": options.coalesce,
        "yield_after": options.yield_after,
    }


def choose_io_backend(io_backend: str | None, loop: asyncio.AbstractEventLoop) -> str:
    """Return the port that a connection is to use.

    Args:
        io_backend: What the user passed.
        loop: The event loop.
    """
    return io_backend or ("fd" if watches_descriptors(loop) else "transport")


async def attach(connection: Connection, sock: socket_module.socket | None, loop: asyncio.AbstractEventLoop) -> None:
    """Let a connection begin: the loop watches its descriptor, or gives it a transport.

    Args:
        connection: The connection.
        sock: A socket for a transport, non-blocking; ``None``, or detached, if the connection has it.
        loop: The event loop.
    """
    try:
        if sock is not None and sock.fileno() >= 0:
            await loop.create_connection(lambda: connection._loop_adapter, sock=sock)
        connection._attach()
    except BaseException:
        connection.abort()
        raise


async def establish(
    opening: Opening,
    options: AsyncClientOptions,
    *,
    create_connection: type[ClientConnection] | Callable[..., ClientConnection] | None = None,
) -> ClientConnection:
    """Make a client's connection of what an opening handshake has opened.

    Args:
        opening: What it has opened. Its socket is taken over.
        options: The keyword arguments of ``connect``.
        create_connection: As for ``connect``.
    """
    loop = asyncio.get_running_loop()
    connected, addresses = opening.connected, opening.addresses
    descriptor = connected.fileno()
    sock: socket_module.socket | None = None
    if choose_io_backend(options.io_backend, loop) != "fd":
        ignore(descriptor)
        sock = socket_module.socket(fileno=connected.detach())
        addresses = addresses or ends_of(sock)
    try:
        opened = opening.handshake.finish(connected if sock is None else None)
        try:
            connection = construct(
                create_connection or ClientConnection,
                ClientConnection,
                opened,
                loop=loop,
                logger=options.effective_logger,
                listener=options.listener,
                **addresses,
                **native_arguments(options),
            )
        except BaseException:
            if sock is None:
                ignore(descriptor)
            # A traceback in a log may keep it for long.
            opened._discard()
            raise
        await attach(connection, sock, loop)
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    return connection


def _marks(limit: int | tuple[int | None, int | None]) -> tuple[int, int]:
    high, low = limit if isinstance(limit, tuple) else (limit, None)
    high = 0 if high is None else high
    return high, high // 4 if low is None else low


_UNLIMITED = 2**62


def _queue(
    messages: int | tuple[int | None, int | None] | None, size: int | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the marks of the queue. Reading stops above both, so the mark that does not count is always passed."""
    high = messages[0] if isinstance(messages, tuple) else messages
    if high is None and size is None:
        return (_UNLIMITED, _UNLIMITED), (_UNLIMITED, _UNLIMITED)
    by_messages = (0, 0) if high is None or messages is None else _marks(messages)
    by_size = (0, 0) if size is None else _marks(size)
    # What always is above its high mark must not be below its low one.
    return by_messages, by_size


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


async def _items(message: Iterable[DataLike] | AsyncIterable[DataLike]) -> AsyncIterator[DataLike]:
    if isinstance(message, AsyncIterable):
        async for item in message:
            yield item
    else:
        for item in message:
            yield item
