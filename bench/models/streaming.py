"""Messages that the server sends by itself: streams, files, both ways at once. One of `twins.TWO_WAYS`."""

import argparse
import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, repeat
from typing import Any

from models.connection import Client, Connection
from models.content import ContentError, File, Sink, Stream, payload_of, two_messages, unwrapping
from models.running import Loop, Step, ask, done, turn
from models.twins import AWAITS

__all__ = ["WORKLOADS"]

# What the sender of `duplex` hands over between two looks at whether to go on.
PART_BYTES = 1 << 16
# Messages that /mixed sends before it waits for one.
MIXED = 9


async def _stream_in(client: Client, options: argparse.Namespace) -> Loop:
    connection = await client.connect(options.url, options.ca, options.size)
    stream = Stream(options.size, connection.encode)
    if options.workload == "stream-in-many" or client.receives == "many":
        return Loop(lambda count: _by_recv_many(connection.can("recv_many"), stream, count, options.batch))
    if client.receives == "await":
        return Loop(lambda count: _by_recv(connection.recv, stream, count))
    # One iterator for all steps, as one loop over the connection would have it.
    messages = aiter(connection.messages)
    return Loop(lambda count: _by_iteration(messages, stream, count))


def _by_recv(recv: Callable[[], Awaitable[Any]], stream: Stream, count: int) -> Step:
    async def step() -> int:
        message = None
        for _ in repeat(None, count):
            message = await recv()
        stream.check(message, count)
        return count

    return step


def _by_iteration(messages: AsyncIterator[Any], stream: Stream, count: int) -> Step:
    async def step() -> int:
        ends = chain(repeat(False, count - 1), (True,))
        async for message in messages:
            if next(ends):
                stream.check(message, count)
                return count
        raise ContentError(f"the stream ended after {stream.position + count - sum(1 for _ in ends)} messages")

    return step


def _by_recv_many(recv_many: Callable[[int], Awaitable[list[Any]]], stream: Stream, count: int, batch: int) -> Step:
    async def step() -> int:
        received = 0
        messages: list[Any] = []
        while received < count:
            messages = await recv_many(batch)
            received += len(messages)
        stream.check(messages[-1], received)
        return received

    return step


async def _mixed(client: Client, options: argparse.Namespace) -> Loop:
    """Takes nine messages, sends one, again and again."""
    connection = await client.connect(options.url, options.ca, options.size)
    stream, sink = Stream(options.size, connection.encode), Sink(options.size)
    messages = [connection.frame(message) for message in two_messages(options.size)]
    send, recv = connection.send, connection.recv

    def prepare(count: int) -> Step:
        turns = messages * (count // 2)

        async def step() -> int:
            for message in turns:
                reply = None
                for _ in repeat(None, MIXED):
                    reply = await recv()
                stream.check(reply, MIXED)
                pending = send(message)
                if pending is not None:
                    await pending
            sink.sent += len(turns)
            return len(turns) * (MIXED + 1)

        return step

    async def finish() -> int:
        # The server waits when it has sent its nine: only then it is asked.
        await _by_recv(recv, stream, MIXED)()
        sink.check(await ask(connection))
        await done(send(messages[0]))
        sink.sent += 1
        return MIXED

    return Loop(prepare, finish)


class _Duplex:
    """A connection that is used in both directions at once: a task, or a thread, of its own sends."""

    def __init__(self, connection: Connection, options: argparse.Namespace) -> None:
        if connection.drain is not None:
            raise ContentError("only an answer tells when this library has caught up, and the stream is in its way")
        self._connection = connection
        self._stream = Stream(options.size, connection.encode)
        self._sink = Sink(options.size, merges=connection.merges)
        self._part = two_messages(options.size) * max(1, min(512, PART_BYTES // options.size // 2))
        self._text = payload_of(connection.encode)
        self._sender: asyncio.Future[None] | Future[None] | None = None
        self._over = False
        self._told = 0

    def prepare(self, count: int) -> Step:
        """Returns a step that takes so many messages of the stream."""
        recv, stream = self._connection.recv, self._stream

        async def step() -> int:
            if self._sender is None:
                self._over = False
                send = self._send
                self._sender = asyncio.ensure_future(send()) if AWAITS else ThreadPoolExecutor(1).submit(send)
            message = None
            for _ in repeat(None, count):
                message = await recv()
            stream.check(message, count)
            return count + self._sent()

        return step

    async def finish(self) -> int:
        """Ends sending; takes the stream until the sink has answered. Returns what was counted meanwhile."""
        recv, sender, received = self._connection.recv, self._sender, 0
        assert sender is not None
        self._over = True
        while not sender.done():
            self._stream.check(await recv(), 1)
            received += 1
        sender.result()
        self._sender = None
        await done(self._connection.can("send_text")("report"))
        while not self._is_answer(await recv()):
            received += 1
        return received + self._sent()

    async def _send(self) -> None:
        send, sink = self._connection.send, self._sink
        while not self._over:
            for message in self._part:
                pending = send(message)
                if pending is not None:
                    await pending
            sink.sent += len(self._part)
            # A library that never has to wait would leave the receiver none.
            await turn()

    def _sent(self) -> int:
        """Returns how many messages were sent since it was asked last."""
        before, self._told = self._told, self._sink.sent
        return self._told - before

    def _is_answer(self, message: Any) -> bool:
        """Tells whether this is the sink's answer, and checks it; it must be the stream's next message otherwise."""
        if self._stream.takes(message):
            return False
        text = self._text(message)
        if not isinstance(text, (str, bytes)) or text[:1] not in ("{", b"{"):
            self._stream.check(message, 1)
        self._sink.check(text)
        return True


async def _duplex(client: Client, options: argparse.Namespace) -> Loop:
    duplex = _Duplex(await client.connect(options.url, options.ca, options.size), options)
    return Loop(duplex.prepare, duplex.finish)


async def _transfer_in(client: Client, options: argparse.Namespace) -> Loop:
    """Takes a file that both ends hash, again and again."""
    connection = await client.connect(options.url, options.ca, options.size)
    file, recv = File(options.size, options.bytes), connection.recv
    payload, text = unwrapping(connection.encode, options.size), payload_of(connection.encode)
    send_text, first = connection.can("send_text"), True

    async def step() -> int:
        nonlocal first
        if not first:
            pending = send_text("again")
            if pending is not None:
                await pending
        first, arrived, digest = False, 0, hashlib.sha256()
        for _ in repeat(None, file.count):
            part = payload(await recv())
            try:
                digest.update(part)
            except TypeError:
                raise ContentError(f"in place of a message of the file came {str(part)[:100]}") from None
            arrived += len(part)
        # Before what the server says at the end is waited for.
        if arrived != file.length:
            raise ContentError(f"{arrived} bytes came in the messages of a file of {file.length}")
        file.check(text(await recv()), digest.hexdigest())
        return file.count

    return Loop(lambda count: step, limit=2)


WORKLOADS = {
    "stream-in": _stream_in,
    "stream-in-many": _stream_in,
    "mixed": _mixed,
    "duplex": _duplex,
    "transfer-in": _transfer_in,
}
