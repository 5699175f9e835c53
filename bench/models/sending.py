"""Messages to /sink and /hash, which tell what has arrived. One of `twins.TWO_WAYS`."""

import argparse
import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from models.connection import Client, Connection
from models.content import ContentError, File, Sink, two_messages
from models.exchanging import check_echo, in_turn, ways
from models.handed import bytes_handed_over
from models.running import Loop, Step, ask, done, turn
from models.twins import AWAITS

__all__ = ["WORKLOADS", "stream_out"]

# What an asyncio loop hands over before it waits until a library without backpressure of its own has caught up. With
# half of it websocket-rs loses a tenth to waiting, with four times as much it loses that to what it has queued.
SEND_STEP_BYTES = 1 << 20

# A file up to this size is made before the clock runs, as all messages are; a larger one in parts, while it is sent.
HELD_BYTES = 64 << 20

Wait = Callable[[], Awaitable[object]]


async def _send_all(connection: Connection, messages: Any) -> None:
    if connection.send_each is not None:
        connection.send_each(messages)
        return
    send = connection.send
    for message in messages:
        try:
            pending = send(message)
        except BlockingIOError:
            pending = await _send_later(connection, message)
        if pending is not None:
            await pending


async def _send_later(connection: Connection, message: Any) -> Any:
    """Sends a message that the library has refused, when it takes more; another task may have been faster."""
    while True:
        await connection.can("writable")()
        with contextlib.suppress(BlockingIOError):
            return connection.send(message)


async def _send_all_waiting(connection: Connection, messages: Iterable[Any], wait: Wait) -> None:
    send = connection.send
    for message in messages:
        pending = send(message)
        if pending is not None:
            await pending
        await wait()


def stream_out(connection: Connection, messages: Sequence[Any], sink: Sink, wait: Wait | None = None) -> Loop:
    """Sends messages, and waits after each, if there is something to wait for; the sink's answer ends the window."""
    frames, drain = [connection.frame(message) for message in messages], connection.drain

    def prepare(count: int) -> Step:
        turns = in_turn(frames, count)

        async def step() -> int:
            if wait is None:
                await _send_all(connection, turns())
            else:
                await _send_all_waiting(connection, turns(), wait)
            if drain is not None:
                await drain()
            sink.sent += count
            return count

        return step

    async def finish() -> None:
        sink.check(await ask(connection))

    return Loop(prepare, finish, limit=max(2, SEND_STEP_BYTES // sink.size) if AWAITS else float("inf"))


async def _send(client: Client, options: argparse.Namespace) -> Loop:
    connect, messages = ways(client, options)
    await check_echo(connect, options, messages[:2])
    connection = await connect(options.url, options.ca, options.size)
    sink = Sink(options.size, merges=connection.merges)
    wait = await _way_to_wait(connection, messages, sink) if options.workload == "send-each" else None
    return stream_out(connection, messages, sink, wait)


async def _way_to_wait(connection: Connection, messages: Sequence[Any], sink: Sink) -> Wait | None:
    """Returns what has to be awaited after each message, so that the system has it: the first that is enough of
    nothing, what the library has for that, a turn of the event loop, as some loops gather what is written.
    """
    waits: list[Wait | None] = [None, connection.flush, turn] if AWAITS else [None]
    for wait in dict.fromkeys(waits):
        before = bytes_handed_over()
        for message in map(connection.frame, messages):
            await done(connection.send(message))
            if wait is not None:
                await wait()
        sink.sent += len(messages)
        if bytes_handed_over() - before >= sum(map(len, messages)):
            return wait
        # What is left must not count for the next way.
        sink.check(await ask(connection))
    raise ContentError("nothing tells when this library has handed a message to the system")


async def _send_many(client: Client, options: argparse.Namespace) -> Loop:
    batch, sink = two_messages(options.size) * max(1, options.batch // 2), Sink(options.size)
    echo = await check_echo(client.connect, options, batch[:2])
    connection = await client.connect(options.url, options.ca, options.size)
    send_many = connection.can("send_many")
    # No more than the socket buffers hold both ways: no call reads the echo meanwhile.
    part = batch[: max(2, 65536 // options.size)]
    await echo.can("send_many")(part)
    for message in part:
        if await echo.recv() != message:
            raise ContentError("the echo of messages that were sent together differs from them")

    def prepare(count: int) -> Step:
        calls = max(1, count // len(batch))

        async def step() -> int:
            for _ in range(calls):
                await send_many(batch)
            sink.sent += calls * len(batch)
            return calls * len(batch)

        return step

    async def finish() -> None:
        sink.check(await ask(connection))

    return Loop(prepare, finish)


async def _tasks(client: Client, options: argparse.Namespace) -> Loop:
    """`connections` tasks, each sends `batch` messages over the one connection there is; of asyncio alone."""
    messages, sink = two_messages(options.size), Sink(options.size)
    await check_echo(client.connect, options, messages)
    connection = await client.connect(options.url, options.ca, options.size)
    turns, drain = [*messages] * max(1, options.batch // 2), connection.drain

    async def step() -> int:
        async with asyncio.TaskGroup() as group:
            for _ in range(options.connections):
                group.create_task(_send_all(connection, turns))
        if drain is not None:
            await drain()
        sink.sent += options.connections * len(turns)
        return options.connections * len(turns)

    async def finish() -> None:
        sink.check(await ask(connection))

    return Loop(lambda count: step, finish, limit=2)


async def _transfer_out(client: Client, options: argparse.Namespace) -> Loop:
    """Sends a file that both ends hash, again and again."""
    connection = await client.connect(options.url, options.ca, options.size)
    file = File(options.size, options.bytes, merges=connection.merges)
    held = [*file.parts(file.length)] if file.length <= HELD_BYTES else None
    digest, drain, times = hashlib.sha256(), connection.drain, 0

    async def step() -> int:
        nonlocal times
        for part in held or file.parts(SEND_STEP_BYTES):
            for message in part:
                digest.update(message)
            await _send_all(connection, part)
            if held is None and drain is not None:
                await drain()
        times += 1
        # The answer ends the file: nothing of it is in a buffer any more.
        file.check(await ask(connection), digest.hexdigest(), times)
        return file.count

    return Loop(lambda count: step, limit=2)


WORKLOADS = {
    **dict.fromkeys(("send", "send-each", "deflate-send"), _send),
    "send-many": _send_many,
    "tasks": _tasks,
    "transfer-out": _transfer_out,
}
