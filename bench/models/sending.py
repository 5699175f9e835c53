"""Other ways of sending to /sink: each message handed to the system before the next, and many tasks at once."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from models import stepping
from models.awaiting import SEND_STEP_BYTES, Awaiting, Connect, Loop, Step, check_echo
from models.content import ContentError, Sink, two_messages
from models.handed import bytes_handed_over

if TYPE_CHECKING:
    from models import blocking

__all__ = ["LOOPS", "each_is_handed_over"]

Wait = Callable[[], Awaitable[object]]

NOT_HANDED_OVER = "nothing tells when this library has handed a message to the system"


async def _send_each(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    await check_echo(connect, options)
    connection = await connect(options.url, options.ca, options.size)
    sink = Sink(options.size)
    messages = two_messages(options.size)
    send, writable = connection.send, connection.writable
    wait = await _way_to_wait(connection, messages, sink)

    def prepare(count: int) -> Step:
        turns = messages * (count // 2)

        async def step() -> int:
            for message in turns:
                try:
                    pending = send(message)
                except BlockingIOError:
                    if writable is None:
                        raise
                    await writable()
                    pending = send(message)
                if pending is not None:
                    await pending
                if wait is not None:
                    await wait()
            if connection.drain is not None:
                await connection.drain()
            sink.sent += len(turns)
            return len(turns)

        return step

    async def finish() -> None:
        sink.check(await connection.report())

    return Loop(prepare, finish, limit=max(2, SEND_STEP_BYTES // options.size))


async def _way_to_wait(connection: Awaiting, messages: list[bytes], sink: Sink) -> Wait | None:
    """Returns what has to be awaited after each message, so that the system has it: the first that is enough of
    nothing, what the library has for that, a turn of the event loop, as some loops gather what is written.
    """

    async def turn() -> None:
        await asyncio.sleep(0)

    ways: list[Wait | None] = [None, *([connection.flush] if connection.flush is not None else []), turn]
    for wait in ways:
        before = bytes_handed_over()
        for message in messages:
            pending = connection.send(message)
            if pending is not None:
                await pending
            if wait is not None:
                await wait()
        sink.sent += len(messages)
        if bytes_handed_over() - before >= sum(map(len, messages)):
            return wait
        # What is left must not count for the next way.
        sink.check(await connection.report())
    raise ContentError(NOT_HANDED_OVER)


def each_is_handed_over(
    prepared: Callable[[blocking.Connect, argparse.Namespace], stepping.Loop],
) -> Callable[[blocking.Connect, argparse.Namespace], stepping.Loop]:
    """Returns the loop of a blocking peer that sends, which only runs if each message is with the system at once."""

    def loop(connect: blocking.Connect, options: argparse.Namespace) -> stepping.Loop:
        loop = prepared(connect, options)
        step = loop.prepare(2)
        before = bytes_handed_over()
        if step() * options.size > bytes_handed_over() - before:
            raise ContentError(NOT_HANDED_OVER)
        return loop

    return loop


async def _tasks(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    """`connections` tasks, each sends `batch` messages over the one connection there is."""
    await check_echo(connect, options)
    connection = await connect(options.url, options.ca, options.size)
    sink = Sink(options.size)
    turns = two_messages(options.size) * max(1, options.batch // 2)
    send, writable, drain, send_each = connection.send, connection.writable, connection.drain, connection.send_each
    one_waits = asyncio.Lock()

    async def wait_until_sent(message: bytes) -> None:
        if writable is None:
            raise ContentError("this library refuses a message and does not say when it takes more")
        async with one_waits:
            while True:
                try:
                    send(message)
                    return
                except BlockingIOError:
                    await writable()

    async def task() -> None:
        if send_each is not None:
            send_each(turns)
        for message in turns if send_each is None else ():
            try:
                pending = send(message)
            except BlockingIOError:
                await wait_until_sent(message)
            else:
                if pending is not None:
                    await pending

    async def step() -> int:
        async with asyncio.TaskGroup() as group:
            for _ in range(options.connections):
                group.create_task(task())
        if drain is not None:
            await drain()
        count = options.connections * len(turns)
        sink.sent += count
        return count

    async def finish() -> None:
        sink.check(await connection.report())

    return Loop(lambda count: step, finish, limit=2)


EACH = "send-each"
"""What hands each message to the system."""

LOOPS = {EACH: _send_each, "tasks": _tasks}
