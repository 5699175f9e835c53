"""A WebSocket as a stream of bytes: a reader and a writer like those of ``asyncio.open_connection``.

This module owns the received bytes that are not read yet; :mod:`._pipe` owns the sending half.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from .._connection import State
from ..exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK
from ..typing import BytesLike, Self
from ._client import connect
from ._connection import ClientConnection
from ._pipe import Pipe, closed_error
from ._tasks import is_turn_due, yield_to_loop

__all__ = ["StreamReader", "StreamWriter", "open_stream"]


# Messages below this size are joined, which costs less than keeping each (measured between 1 and 16 KiB).
_SMALL = 4096


async def open_stream(
    uri: str, *, limit: int = 2**16, message_size: int = 2**16, **connect_options: Any
) -> tuple[StreamReader, StreamWriter]:
    """Connect to a WebSocket server that carries a stream of bytes, such as VNC, SSH, MQTT or a database protocol.

    Written bytes are sent in binary messages. The reader gets the bytes of binary messages, and the UTF-8 of text
    messages. Message boundaries have no meaning.

    Args:
        uri: ``ws://`` or ``wss://`` URI.
        limit: Bytes to receive ahead of the application; beyond it, reading from the socket stops, and the server has
            to wait. Also the maximum length of a line, or of a chunk up to a separator.
        message_size: Maximum size in bytes of a sent message. Servers limit the messages that they accept, some to
            64 KiB.
        **connect_options: Keyword arguments of :func:`wirespeed.connect`. ``compression`` is ``None`` by default,
            because most such protocols encrypt or compress by themselves.

    Raises:
        TypeError, ValueError: An argument is wrong; the message names it.
        Exception: As for :func:`wirespeed.connect`.
    """
    for name, value in (("limit", limit), ("message_size", message_size)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1")
    for name in ("listener", "zero_copy"):
        if connect_options.get(name):
            raise TypeError(f"{name} is of no use here: the reader receives")
    defaults = {"compression": None, "max_queue": None, "max_queue_bytes": limit}
    connection = await connect(uri, **{**defaults, **connect_options})
    pipe = Pipe(connection, message_size, connect_options.get("close_timeout", 10))
    return StreamReader(pipe, limit), StreamWriter(pipe)


class StreamReader:
    """The receiving half of :func:`open_stream`, with the methods of ``asyncio.StreamReader``.

    Iterating over it yields lines. One coroutine may read at a time. Cancelling a read loses no bytes.

    The stream ends when the server closes the connection with code 1000, 1001 or without a code. If the connection
    ends otherwise, reading raises :exc:`StreamClosedError`, after all received bytes have been read.
    """

    __slots__ = ("__weakref__", "_buffer", "_limit", "_messages", "_pipe", "_size", "_waiting")

    def __init__(self, pipe: Pipe, limit: int) -> None:
        self._pipe = pipe
        self._limit = limit
        # Bytes already searched for a separator, and the messages after them. Their total is _size.
        self._buffer = bytearray()
        self._messages: deque[bytes | memoryview] = deque()
        self._size = 0
        self._waiting = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._size} bytes buffered, {self._pipe.connection!r}>"

    async def read(self, n: int = -1) -> bytes:
        """Read available bytes; wait if there are none.

        Args:
            n: Maximum number of bytes; -1 to read until the end of the stream.

        Returns:
            At least one byte, unless the stream has ended or ``n`` is 0.

        Raises:
            StreamClosedError: The connection did not end cleanly.
            RuntimeError: Another coroutine is reading.
        """
        if is_turn_due():
            await yield_to_loop()
        if n < 0:
            while await self._receive("read"):
                pass
            return self._take(self._size)
        if n and not self._size:
            await self._receive("read")
        return self._take(n)

    async def readexactly(self, n: int) -> bytes:
        """Read exactly ``n`` bytes.

        Args:
            n: Number of bytes.

        Raises:
            asyncio.IncompleteReadError: The stream ended before; ``partial`` holds the remaining bytes.
            StreamClosedError: The connection did not end cleanly. Received bytes are kept for :meth:`read`.
            RuntimeError: Another coroutine is reading.
        """
        if n < 0:
            raise ValueError("readexactly size can not be less than zero")
        if is_turn_due():
            await yield_to_loop()
        while self._size < n:
            if not await self._receive("readexactly"):
                raise asyncio.IncompleteReadError(self._take(n), n)
        return self._take(n)

    async def readuntil(self, separator: bytes | tuple[bytes, ...] = b"\n") -> bytes:
        """Read up to and including a separator.

        Args:
            separator: The separator, or several. The one that ends first counts.

        Raises:
            asyncio.IncompleteReadError: The stream ended before; ``partial`` holds the remaining bytes.
            asyncio.LimitOverrunError: There are more than ``limit`` bytes before the separator. They are kept for
                another method.
            StreamClosedError: The connection did not end cleanly. Received bytes are kept for :meth:`read`.
            RuntimeError: Another coroutine is reading.
        """
        separators = separator if isinstance(separator, tuple) else (separator,)
        if not separators:
            raise ValueError("Separator should contain at least one element")
        lengths = [len(each) for each in separators]
        if not min(lengths):
            raise ValueError("Separator should be at least one-byte string")
        if is_turn_due():
            await yield_to_loop()
        searched = 0
        while True:
            found = [
                (start + length, start)
                for each, length in zip(separators, lengths, strict=True)
                if (start := self._buffer.find(each, searched)) >= 0
            ]
            if found:
                end, start = min(found)
                if start > self._limit:
                    raise asyncio.LimitOverrunError("Separator is found, but chunk is longer than limit", start)
                return self._take(end)
            # The end of the buffer may be the beginning of the longest separator.
            searched = max(0, len(self._buffer) + 1 - max(lengths))
            if searched > self._limit:
                raise asyncio.LimitOverrunError("Separator is not found, and chunk exceed the limit", searched)
            if self._messages:
                self._buffer += self._messages.popleft()
            elif not await self._receive("readuntil"):
                raise asyncio.IncompleteReadError(self._take(self._size), None)

    async def readline(self) -> bytes:
        r"""Read a line including its ``\n``. Only the last line may lack it; the result is empty at the end.

        Raises:
            ValueError: The line is longer than ``limit``. The part that has arrived is dropped.
            StreamClosedError: The connection did not end cleanly. Received bytes are kept for :meth:`read`.
            RuntimeError: Another coroutine is reading.
        """
        try:
            return await self.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            return exc.partial
        except asyncio.LimitOverrunError as exc:
            # Drop the line with its end, if that has arrived.
            end = exc.consumed + 1
            self._take(end if self._buffer.startswith(b"\n", exc.consumed) else len(self._buffer))
            raise ValueError(exc.args[0]) from None

    def at_eof(self) -> bool:
        """Return whether the stream has ended and all bytes were read."""
        connection = self._pipe.connection
        while not self._size and not self._waiting and connection.state is not State.OPEN:
            try:
                self._keep([connection.recv_nowait(decode=False)])
            except ConnectionClosedOK:
                return True
            except (BlockingIOError, ConnectionClosedError):
                break
        return False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def _receive(self, name: str) -> bool:
        """Receive and keep messages; return ``False`` at the end of the stream."""
        if self._waiting:
            raise RuntimeError(f"{name}() called while another coroutine is already waiting for incoming data")
        # Send written bytes first, as the peer may wait for them before it responds.
        self._pipe.push()
        self._waiting = True
        try:
            while not self._keep(await self._pipe.connection.recv_many(decode=False)):
                pass
            return True
        except ConnectionClosedOK:
            return False
        except ConnectionClosed as exc:
            self._pipe.fail(exc)
            raise closed_error(exc) from exc.__cause__
        finally:
            self._waiting = False

    def _keep(self, messages: list[bytes]) -> bool:
        """Keep messages; return ``False`` if all are empty."""
        if len(messages) > 1 and len(messages[0]) < _SMALL:
            messages = [b"".join(messages)]
        before = self._size
        for message in messages:
            if message:
                self._messages.append(message)
                self._size += len(message)
        return self._size > before

    def _take(self, size: int) -> bytes:
        """Return up to ``size`` bytes. They are copied once; a whole message is not copied."""
        size = min(size, self._size)
        self._size -= size
        if size < len(self._buffer):
            data = bytes(memoryview(self._buffer)[:size])
            del self._buffer[:size]
            return data
        parts: list[bytes | memoryview] = []
        if self._buffer:
            parts.append(bytes(self._buffer))
            self._buffer.clear()
            size -= len(parts[0])
        while size:
            part = self._messages.popleft()
            if len(part) > size:
                view = memoryview(part)
                self._messages.appendleft(view[size:])
                part = view[:size]
            parts.append(part)
            size -= len(part)
        first = parts[0] if len(parts) == 1 else None
        return first if isinstance(first, bytes) else b"".join(parts)


class StreamWriter:
    """The sending half of :func:`open_stream`, with the methods of ``asyncio.StreamWriter``.

    Bytes written in one iteration of the event loop are sent in one message, if they fit. :meth:`drain` and reading
    send them earlier.
    """

    __slots__ = ("__weakref__", "_eof", "_pipe")

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._eof = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._pipe.connection!r}>"

    @property
    def connection(self) -> ClientConnection:
        """The connection, for its latency, pings, counters and ``abort()``. Do not receive or send with it."""
        return self._pipe.connection

    def write(self, data: BytesLike) -> None:
        """Send bytes.

        It never waits, and keeps bytes that cannot be sent yet: await :meth:`drain` after it. If the stream has ended
        or is closing, the bytes are dropped, and :meth:`drain` raises.

        Args:
            data: The bytes, which are copied.

        Raises:
            RuntimeError: :meth:`write_eof` was called before.
            TypeError: ``data`` is not bytes-like.
        """
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        if data:
            self._pipe.write(data)

    def writelines(self, data: Iterable[BytesLike]) -> None:
        """Send the bytes of several objects.

        Args:
            data: The objects.
        """
        for each in data:
            self.write(each)

    async def drain(self) -> None:
        """Wait until the operating system has taken all written bytes.

        Raises:
            StreamClosedError: The stream has ended.
        """
        await self._pipe.drain()

    def can_write_eof(self) -> bool:
        """Return ``False``: like TLS, a WebSocket cannot end only one direction for long."""
        return False

    def write_eof(self) -> None:
        """Send the written bytes, then a close frame with code 1000.

        Bytes that the server sends before its own close frame can still be read, within ``close_timeout``. Most
        servers send nothing more, so request everything you need before.
        """
        self._eof = True
        self._pipe.close(keep=True)

    def close(self) -> None:
        """Send the written bytes, then begin the closing handshake. :meth:`wait_closed` waits for it.

        Bytes that the server does not take within ``close_timeout`` are dropped.
        """
        self._pipe.close()

    def is_closing(self) -> bool:
        """Return whether writing has ended: the stream has ended or is closing."""
        return self._pipe.closing is not None or self._pipe.connection.state is not State.OPEN

    async def wait_closed(self) -> None:
        """Wait until the connection is closed.

        Raises:
            StreamClosedError: Some written bytes could not be sent.
        """
        if is_turn_due():
            await yield_to_loop()
        await self._pipe.wait_closed()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection.

        Args:
            name: ``"peername"``, ``"sockname"``, ``"subprotocol"`` or ``"connection"``.
            default: The value to return for other names.
        """
        connection = self._pipe.connection
        match name:
            case "peername":
                return connection.remote_address
            case "sockname":
                return connection.local_address
            case "subprotocol":
                return connection.subprotocol
            case "connection":
                return connection
        return default
