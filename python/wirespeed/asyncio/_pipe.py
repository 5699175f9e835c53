"""The sending half of a stream, and its end: shared by reader and writer of :func:`wirespeed.open_stream`.

It owns the written bytes that are not yet part of a message, and tracks whether the operating system has taken the
messages. It knows nothing about received bytes. It starts tasks only while the server does not read, and to close.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from .._connection import State
from ..close_codes import CloseCode
from ..exceptions import ConnectionClosed, StreamClosedError
from ..typing import BytesLike
from ._tasks import start_task

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ._connection import ClientConnection

__all__ = ["Pipe", "closed_error"]


def closed_error(closed: ConnectionClosed) -> StreamClosedError:
    """Return a new exception for the end of a connection. Raising the same one again would keep old frames alive."""
    error = StreamClosedError(closed.rcvd, closed.sent, closed.rcvd_then_sent)
    error.__cause__ = closed.__cause__
    return error


class Pipe:
    """The state shared by reader and writer. It does not refer to them, so that they are freed when unused.

    1. Write: :meth:`write`; :meth:`push` sends without waiting, :meth:`drain` waits until the system has taken all.
    2. End: :meth:`close`, then :meth:`wait_closed`; :meth:`fail` if the connection has ended by itself.

    Args:
        connection: The connection.
        message_size: Maximum size of a message in bytes.
        close_timeout: Seconds without progress after which closing drops unsent bytes; ``None`` for no limit.

    Attributes:
        connection: The connection.
        failure: The exception by which sending noticed the end of the connection; ``None`` before.
        closing: The task that closes, once it is started.
    """

    def __init__(self, connection: ClientConnection, message_size: int, close_timeout: float | None) -> None:
        self.connection = connection
        self.failure: ConnectionClosed | None = None
        self.closing: asyncio.Task[None] | None = None
        # Whether written bytes were dropped before they became a message.
        self._lost = False
        # Numbers of messages passed to the connection, and of messages known to be flushed. The difference is lost if
        # the connection ends, because it can no longer be asked about them then.
        self._sent = 0
        self._flushed = 0
        self._loop = asyncio.get_running_loop()
        self._message_size = message_size
        self._close_timeout = close_timeout
        # Chunks that are written and not sent; their total is _size.
        self._chunks: deque[BytesLike] = deque()
        self._size = 0
        self._scheduled = False
        self._pump: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._keep = False

    def fail(self, failure: ConnectionClosed) -> None:
        """Store the exception that ended the connection, and drop unsent bytes."""
        self.failure = self.failure or failure.with_traceback(None)
        self._lost = self._lost or self._size > 0
        self._chunks.clear()
        self._size = 0

    # Sending

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent at the end of this iteration of the loop, or once they fill a message."""
        if self.failure is not None or self.closing is not None:
            self._lost = self._lost or self.closing is None
            return
        self._chunks.append(data)
        self._size += len(data)
        if self._size >= self._message_size:
            self._push(whole=True)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end_of_iteration)

    def _end_of_iteration(self) -> None:
        self._scheduled = False
        self.push()
        self._watch_rest()

    def push(self) -> None:
        """Send written bytes, as far as the connection has room. A task sends the rest."""
        self._push(whole=False)
        if self._is_in_doubt() and self._has_flushed():
            self._flushed = self._sent

    def _push(self, *, whole: bool) -> None:
        if self._size and not _runs(self._pump) and not self._send(whole=whole):
            self._pump = self.start(self._send_rest())

    def _is_in_doubt(self) -> bool:
        """Return whether a message may not be flushed yet, and no task is waiting to find out."""
        return self._sent != self._flushed and not _runs(self._pump) and not _runs(self._watch)

    def _has_flushed(self) -> bool:
        """Return whether the operating system has taken all messages, without the cost of a task."""
        flushing = self.connection.flush()
        try:
            flushing.send(None)
        except StopIteration:
            return True
        except ConnectionClosed:
            return False
        flushing.close()
        return False

    def _watch_rest(self) -> None:
        """Start a task that waits for the flush, if some messages may not be flushed."""
        if self._is_in_doubt():
            self._watch = self.start(self._flush_rest())

    async def _flush_rest(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while self._sent != self._flushed:
                await self._flush()

    async def _flush(self) -> None:
        sent = self._sent
        await self.connection.flush()
        # Another task may have flushed more messages meanwhile.
        self._flushed = max(self._flushed, sent)

    def _send(self, *, whole: bool) -> bool:
        least = self._message_size if whole else 1
        while self._size >= least:
            message = self._next_message()
            try:
                self.connection.send_nowait(message)
            except BlockingIOError:
                self._chunks.appendleft(message)
                return False
            except ConnectionClosed as exc:
                self.fail(exc)
                return True
            self._sent += 1
            self._size -= len(message)
        return True

    def _next_message(self) -> BytesLike:
        taken: list[BytesLike] = []
        room = self._message_size
        while self._chunks and room:
            chunk = self._chunks.popleft()
            if len(chunk) > room:
                view = memoryview(chunk)
                self._chunks.appendleft(view[room:])
                chunk = view[:room]
            taken.append(chunk)
            room -= len(chunk)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def _send_rest(self) -> None:
        try:
            while self._size:
                await self._flush()
                self._send(whole=False)
        except ConnectionClosed as exc:
            self.fail(exc)
        else:
            # This task is about to end, so it does not count as running.
            self._pump = None
            self._watch_rest()

    async def drain(self) -> None:
        """Wait until the operating system has taken all written bytes.

        Raises:
            StreamClosedError: It could not be sent.
        """
        self._push(whole=False)
        if self._pump is not None:
            # Cancelling the caller does not cancel the task.
            await asyncio.shield(self._pump)
        if self.failure is None:
            try:
                await self._flush()
            except ConnectionClosed as exc:
                self.fail(exc)
        if self.failure is not None:
            raise closed_error(self.failure)

    # Closing

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task that is kept alive until it is done."""
        return start_task(self._loop, work)

    def close(self, *, keep: bool = False) -> None:
        """Begin to close, if that has not happened yet.

        Args:
            keep: Whether to keep data that arrives until the end: the server must then wait for a slow reader.
        """
        if self.closing is None:
            self._keep = keep
            self.push()
            self.closing = self.start(self._close())
        elif self._keep and not keep:
            self._keep = False
            if self.connection.state is not State.OPEN:
                self.connection._begin_close(CloseCode.NORMAL_CLOSURE, "")

    async def wait_closed(self) -> None:
        """Return when the connection is closed.

        Raises:
            StreamClosedError: Written bytes were lost.
        """
        if self.closing is not None:
            await asyncio.shield(self.closing)
        else:
            await self.connection.wait_closed()
            # Drop bytes that were written after the end.
            self.push()
        # These tasks end with the connection, and update the counters of lost messages.
        if tasks := [task for task in (self._pump, self._watch) if task is not None]:
            await asyncio.wait(tasks)
        if self._lost or self._sent != self._flushed:
            raise closed_error(self.failure or self.connection._closed_error())

    async def _close(self) -> None:
        while self._pump is not None and not self._pump.done():
            left = self._size
            await asyncio.wait([self._pump], timeout=self._close_timeout)
            if self._size == left:
                break
        self._watch_rest()
        if _runs(self._watch):
            # Let it run before the close frame is queued: it must wait for the written bytes only.
            await asyncio.sleep(0)
        self.connection._begin_close(CloseCode.NORMAL_CLOSURE, "", keep=self._keep)
        await self.connection.wait_closed()


def _runs(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()
