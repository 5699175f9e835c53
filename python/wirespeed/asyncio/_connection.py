"""The asyncio connection, its construction, and ``Listener`` for its events.

The native base class implements messages; this module implements the methods that are called less often.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import inspect
import socket as socket_module
import sys
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Coroutine,
    Iterable,
    Mapping,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from .._connection import JSON, MSGPACK, ConnectionStatus, State, construct
from .._native import AsyncConnection, Opened
from .._net.addresses import socket_addresses
from ..close_codes import CloseCode
from ..exceptions import ConcurrencyError, ConnectionClosed, ConnectionClosedOK
from ..typing import BytesLike, Data, DataLike, Self
from ._sockets import ignore, watches_descriptors
from ._tasks import can_suspend, is_turn_due, leave, yield_to_loop

if TYPE_CHECKING:
    from .._options.client import AsyncClientOptions
    from ._opening import Opening

__all__ = ["ClientConnection", "Connection", "Listener", "attach", "choose_io_backend", "establish"]


class Connection(ConnectionStatus, AsyncConnection):
    """A WebSocket connection on an event loop.

    As an asynchronous context manager it closes the connection with code 1000, or with 1011 after an exception.
    Iterating over it yields messages until the connection is closed. A close with code 1000, 1001 or no code ends the
    iteration; any other end raises.

    Any number of tasks may receive, in the order of their calls, and send. Cancelling a call loses no message and
    leaves the connection usable. The connection belongs to its event loop: other threads use
    ``loop.call_soon_threadsafe`` or ``asyncio.run_coroutine_threadsafe``.

    1. Receive: ``recv()``, ``recv_many()``, ``recv_nowait()``, iteration, :meth:`recv_streaming`, :meth:`recv_json`.
    2. Send: ``send()``, ``send_many()``, ``send_nowait()``, :meth:`send_json`. ``flush()`` waits until the system has
       taken all bytes.
    3. End: :meth:`close` and :meth:`wait_closed`, or ``abort()`` to end without the closing handshake.

    Attributes:
        id: A UUID, for logs.
        logger: The logger given to ``connect``.
        local_address: Address of this end, as ``socket.getsockname()`` returned it when the connection was opened.
        remote_address: Address of the other end; with a proxy, the address of the proxy.
    """

    def __init__(self, opened: Opened, **options: Any) -> None:
        # All state is native: the connection has no dict until attributes are added.
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
            # A connection whose constructor raised has no native part.
            over = self._is_over
        except AttributeError:
            return
        # At the end of the interpreter the names of this module are gone; the system closes the socket.
        if over or contextlib is None:
            return
        try:
            # A connection that is closing has already raised an exception, and needs no warning. After a fork, the
            # parent process closes the connection.
            if self._state == State.OPEN and not self._is_forked:
                with contextlib.suppress(ImportError):  # the interpreter shuts down: warnings cannot be shown
                    warnings.warn(f"unclosed connection {self!r}", ResourceWarning, source=self, stacklevel=1)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                leave(self, CloseCode.GOING_AWAY)

    # Socket.

    def fileno(self) -> int:
        """Return the file descriptor of the socket, -1 once the connection is closed."""
        transport = self._transport
        if transport is None:
            return self._fileno()
        sock = transport.get_extra_info("socket")
        return -1 if sock is None or self._state == State.CLOSED else int(sock.fileno())

    # Receiving.

    def __aiter__(self) -> AsyncIterator[Data]:  # type: ignore[override]
        # The native iterator does not call recv, which may be overridden or replaced.
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
            decode: ``None`` for ``str`` from text and ``bytes`` from binary messages, ``True`` for always ``str``,
                ``False`` for always ``bytes``.

        Yields:
            The fragments. Text is split between characters, so a fragment may be shorter than the peer sent it.

        Raises:
            ConnectionClosed: The connection was closed before the end of the message.
            ConcurrencyError: Another task is running this method.
        """
        if self._streaming_receiver:
            raise ConcurrencyError("recv_streaming is running in another place already")
        # A signal handler may raise before the first fragment arrives here: it is discarded too. If no message has
        # begun, there is nothing to discard.
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
            await self._room()  # raises, and takes no item
        kind: bool | None = None
        begun = False
        try:
            async for fragment in _items(message):
                if not isinstance(fragment, (str, bytes, bytearray, memoryview)) and not _is_buffer(fragment):
                    raise TypeError(f"fragments must be str or bytes-like, not {type(fragment).__name__}")
                if not begun:
                    # Wait here: the first fragment may come late, and other messages can be sent until then.
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
            # The message cannot be completed, and no other message can be sent before it is. So the connection is
            # closed, as in the websockets library.
            if kind is not None:
                with contextlib.suppress(Exception):
                    try:
                        self._begin_close(CloseCode.INTERNAL_ERROR, "error in fragmented message")
                    except RuntimeError:
                        # The coroutine is closed in another thread, perhaps by garbage collection.
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
            # Wait before taking the next message, which could not be put back.
            await self._room()
            try:
                message = await iterator.__anext__()
            except StopAsyncIteration:
                break
            await self.send(message, text=text, compress=compress)
        await self.flush()

    # Not a coroutine, but a function that returns the awaitable of `send`: one object less for each message.
    def send_json(self, value: Any, *, compress: bool | None = None) -> Coroutine[Any, Any, None]:
        """Send a value as JSON, in a text message. Needs ``wirespeed[codecs]``.

        Args:
            value: Any value that msgspec can encode: builtin types, dataclasses, ``msgspec.Struct``, datetimes, ...
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value cannot be encoded as JSON.
        """
        return self.send(JSON.encode(value), text=True, compress=compress)

    async def recv_json(self, type: Any = Any) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as JSON. Needs ``wirespeed[codecs]``.

        Args:
            type: Expected type: any type that msgspec supports.

        Raises:
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message does not match the type.
            msgspec.DecodeError: The message is not JSON.
        """
        decode = JSON.decoder(type)
        return decode(await self.recv(decode=False))

    def send_msgpack(self, value: Any, *, compress: bool | None = None) -> Coroutine[Any, Any, None]:
        """Send a value as MessagePack, in a binary message. Needs ``wirespeed[codecs]``.

        Args:
            value: As for :meth:`send_json`.
            compress: As for :meth:`send`.

        Raises:
            ConnectionClosed: The connection is closed.
            TypeError: The value cannot be encoded as MessagePack.
        """
        return self.send(MSGPACK.encode(value), compress=compress)

    async def recv_msgpack(self, type: Any = Any) -> Any:  # noqa: A002 - the word of msgspec
        """Receive a message and decode it as MessagePack. Needs ``wirespeed[codecs]``.

        Args:
            type: As for :meth:`recv_json`.

        Raises:
            ConnectionClosed: The connection is closed.
            msgspec.ValidationError: The message does not match the type.
            msgspec.DecodeError: The message is not MessagePack.
        """
        decode = MSGPACK.decoder(type)
        return decode(await self.recv(decode=False))

    # Control frames.

    async def ping(self, data: str | BytesLike | None = None) -> Awaitable[float]:
        """Send a ping.

        Args:
            data: Payload of at most 125 bytes; random by default.

        Returns:
            A future for the latency in seconds, done when the pong arrives. It need not be awaited::

                latency = await (await ws.ping())

        Raises:
            ConnectionClosed: The connection is closed; the future raises it too.
            ConcurrencyError: A ping with the same data is still unanswered.
        """
        await self._control_room()
        return self._ping(data)

    async def pong(self, data: str | BytesLike = b"") -> None:
        """Send an unsolicited pong. Pings are answered without it.

        Args:
            data: Payload of at most 125 bytes.

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
            # Raise how the connection ended, once it is closed.
            await self.wait_closed()
            raise self._closed_error()
        # Control frames do not wait for a fragmented message to end.
        await self._drained()
        while self._is_mid_frame:
            await self._room()

    # Closing.

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the connection (RFC 6455, section 7.1.2) and return when it is closed, within ``close_timeout``.

        Messages that have already arrived can still be received. Closing a closed connection does nothing.

        Args:
            code: Close code.
            reason: Close reason, at most 123 bytes of UTF-8.

        Raises:
            ProtocolError: The code or the reason is not allowed in a close frame.
        """
        self._begin_close(code, reason)
        await self._wait_for_end()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed.

        Raises:
            Exception: The exception that a method of the listener raised.
        """
        await self._wait_for_end()
        if self._listener_error is not None:
            raise self._listener_error

    def _tell_listener_error(self, error: Exception) -> None:
        """Log the exception of a listener's method, before the connection is closed because of it."""
        if isinstance(error, ConnectionClosed) and error._origin == self._origin:
            # The connection ended while messages were left for the listener, which sent a response. This is normal, so
            # it is logged for debugging only.
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
    """The connection of a client, created by :func:`wirespeed.connect`."""


def choose_io_backend(io_backend: str | None, loop: asyncio.AbstractEventLoop) -> str:
    """Return the I/O backend that a connection uses.

    Args:
        io_backend: The argument of the user.
        loop: The event loop.
    """
    return io_backend or ("fd" if watches_descriptors(loop) else "transport")


async def attach(connection: Connection, sock: socket_module.socket | None, loop: asyncio.AbstractEventLoop) -> None:
    """Attach a connection to the loop, which watches its descriptor or gives it a transport.

    Args:
        connection: The connection.
        sock: Non-blocking socket for a transport; ``None`` or detached if the connection owns the socket.
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
) -> ClientConnection:
    """Create the connection of a client from a completed opening handshake.

    Args:
        opening: The completed handshake. Its socket is taken over.
        options: The keyword arguments of ``connect``.
    """
    loop = asyncio.get_running_loop()
    connected, addresses = opening.connected, opening.addresses
    descriptor = connected.fileno()
    sock: socket_module.socket | None = None
    if choose_io_backend(options.io_backend, loop) != "fd":
        ignore(descriptor)
        sock = socket_module.socket(fileno=connected.detach())
        addresses = addresses or socket_addresses(sock)
    try:
        opened = opening.handshake.finish(connected if sock is None else None)
        try:
            connection = construct(
                options.create_connection or ClientConnection,
                ClientConnection,
                opened,
                loop=loop,
                logger=options.effective_logger,
                listener=options.listener,
                **addresses,
            )
        except BaseException:
            if sock is None:
                ignore(descriptor)
            # A logged traceback may keep it alive for long.
            opened._discard()
            raise
        await attach(connection, sock, loop)
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    return connection


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


class Listener:
    """Receives messages and events of a connection. Pass an instance to :func:`wirespeed.connect` as ``listener``.

    Override the methods that you need; others cost nothing. The event loop calls them, one at a time, so they must not
    block. If ``on_message`` is overridden, it receives all messages, and ``recv`` and similar methods raise
    ``RuntimeError``; otherwise messages are received as without a listener. Messages are delivered at once, so
    ``max_queue`` does not limit them: a listener that stores messages needs its own limit.

    An exception in a method closes the connection with code 1011, and :meth:`ClientConnection.wait_closed` raises it.
    After it, only ``on_close`` is called. ``KeyboardInterrupt`` and ``SystemExit`` propagate to the event loop.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in vars(cls).items():
            if hasattr(Listener, name) and name.startswith("on_") and inspect.iscoroutinefunction(method):
                raise TypeError(f"{cls.__qualname__}.{name} must not be async: begin a task in it for what has to wait")

    def on_open(self, ws: Connection) -> None:
        """Called when the connection is open, before all other methods.

        Args:
            ws: The connection.
        """

    # Any, so that an override can declare the types that it gets. They depend on the peer and on ``zero_copy``.
    def on_message(self, ws: Connection, message: Any) -> None:
        """Called when a message has arrived.

        Args:
            ws: The connection.
            message: ``str`` for text, ``bytes`` for binary; with ``zero_copy``, a read-only ``memoryview`` for binary.
                The view is meant for use during the call. It stays valid if you keep it, but then keeps the whole
                read buffer in memory.
        """

    def on_ping(self, ws: Connection, data: bytes) -> None:
        """Called when a ping has arrived. The pong is sent automatically.

        Args:
            ws: The connection.
            data: Payload of at most 125 bytes.
        """

    def on_pong(self, ws: Connection, data: bytes) -> None:
        """Called when a pong has arrived.

        Args:
            ws: The connection.
            data: Payload of at most 125 bytes.
        """

    def on_close(self, ws: Connection, code: int, reason: str) -> None:
        """Called once when the connection is closed, after all other methods.

        Args:
            ws: The connection.
            code: Code of the received close frame; 1005 if it has no code, 1006 if none was received.
            reason: Reason of the received close frame.
        """

    def on_writable(self, ws: Connection) -> None:
        """Called when there is room to send again, after ``send_nowait`` raised or reached ``write_limit``.

        Args:
            ws: The connection.
        """
