"""The measuring loops of the asyncio peers that await: the same code around every library.

A library whose `send` only queues returns None; that of the others is awaited. This module knows no library.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from models.content import ContentError, Sink, Stream, two_messages
from models.latency import WINDOW_SHARE, Latencies
from models.program import STEP_SECONDS, echo_url, gate, result
from models.usage import Usage

__all__ = ["LOOPS", "SEND_STEP_BYTES", "Awaiting", "Connect", "Loop", "Step", "check_echo", "run", "text_report"]

# What the sending loop hands over before it waits until a library without backpressure of its own has caught
# up. With half of it websocket-rs loses a tenth to waiting, with four times as much it loses that to what it
# has queued.
SEND_STEP_BYTES = 1 << 20


@dataclass(frozen=True)
class Awaiting:
    """One open connection, as the loops drive it.

    Attributes:
        connection: what must be kept for the connection to stay open.
        send: sends one binary message: returns an awaitable, or None if there is nothing to wait for. If it raises
            BlockingIOError, the message is sent again after `writable`.
        recv: returns an awaitable of the next message.
        report: asks the server's /sink what has arrived, returns its answer.
        send_text: sends one text message; returns as `send` does.
        messages: iterates over the messages that arrive.
        recv_many: returns an awaitable of a list of the messages that are ready, at least one and at most so many.
        writable: waits until `send` can take more; only for a library whose `send` raises BlockingIOError.
        drain: waits until not too much is queued; only for a library whose `send` takes whatever comes.
        flush: waits until the system has taken all that was sent; only for a library that can gather messages.
        send_each: sends a list of binary messages by one `send` call for each; only for a library that is called from
            compiled code.
        close: closes the connection, with the closing handshake where the library has one; what it returns is awaited,
            unless that is None.
        encode: makes of a message what `recv` returns for it.
    """

    connection: object
    send: Callable[[Any], Awaitable[object] | None]
    recv: Callable[[], Awaitable[Any]]
    report: Callable[[], Awaitable[object]]
    send_text: Callable[[str], Awaitable[object] | None] | None = None
    messages: Any = None
    recv_many: Any = None
    writable: Callable[[], Awaitable[object]] | None = None
    drain: Callable[[], Awaitable[object]] | None = None
    flush: Callable[[], Awaitable[object]] | None = None
    send_each: Callable[[list[bytes]], object] | None = None
    close: Callable[[], Awaitable[object] | None] | None = None
    encode: Callable[[Any], Any] = lambda message: message


Connect = Callable[[str, str | None, int], Awaitable[Awaiting]]
"""Connects to a URL, trusting the CA in a PEM file if given; the third argument is the size of the messages to come."""

Step = Callable[[], Awaitable[int]]


async def _nothing() -> None:
    pass


async def _no_figures(seconds: float) -> dict[str, object]:
    return {}


@dataclass(frozen=True)
class Loop:
    """A workload on an open connection.

    Attributes:
        prepare: returns a step of so many messages.
        finish: ends a sequence of steps, inside the window; returns what it counted beside them, if anything.
        begin: told that the warm-up is over.
        settle: makes sure that nothing is missing, after the window.
        figures: measures further figures, after the window, in about so many seconds.
        limit: the most messages in a step.
    """

    prepare: Callable[[int], Step]
    finish: Callable[[], Awaitable[int | None]] = _nothing
    begin: Callable[[], None] = lambda: None
    settle: Callable[[], Awaitable[None]] = _nothing
    figures: Callable[[float], Awaitable[dict[str, object]]] = _no_figures
    limit: float = float("inf")


def text_report(
    send: Callable[[str], Awaitable[object] | None], recv: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[object]]:
    """Returns the `report` of a library that sends a str as a text message."""

    async def report() -> object:
        pending = send("report")
        if pending is not None:
            await pending
        return await recv()

    return report


async def measure(connect: Connect, style: str, options: argparse.Namespace) -> dict[str, object]:
    """Runs the workload that the options name, receiving in the way that `style` names."""
    return await run(await LOOPS[options.workload](connect, style, options), options)


async def run(loop: Loop, options: argparse.Namespace) -> dict[str, object]:
    """Warms up, then runs a workload on its open connection for one window."""
    step = await _warm_up(loop, options.warmup)
    gate(options)
    loop.begin()
    count = 0
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    while time.perf_counter() < end:
        count += await step()
    count += await loop.finish() or 0
    used = Usage.now(options.server_pid) - since
    await loop.settle()
    return result(count, used, **await loop.figures(options.seconds * WINDOW_SHARE))


async def _warm_up(loop: Loop, seconds: float) -> Step:
    """Runs the workload for some time, and finds the step that takes about STEP_SECONDS."""
    count = 2
    step = loop.prepare(count)
    end = time.perf_counter() + seconds
    while True:
        since = time.perf_counter()
        await step()
        now = time.perf_counter()
        if now - since < STEP_SECONDS / 2 and count * 2 <= loop.limit:
            count *= 2
            step = loop.prepare(count)
        elif now >= end:
            break
    await loop.finish()
    return step


async def _round_trip(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    connection = await connect(options.url, options.ca, options.size)
    pairs = [(message, connection.encode(message)) for message in two_messages(options.size)]
    send, recv = connection.send, connection.recv

    def prepare(count: int) -> Step:
        turns = pairs * (count // 2)

        async def step() -> int:
            for message, expected in turns:
                pending = send(message)
                if pending is not None:
                    await pending
                if await recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
            return len(turns)

        return step

    async def figures(seconds: float) -> dict[str, object]:
        latencies, clock = Latencies(), time.perf_counter_ns
        end = time.perf_counter() + seconds
        while True:
            for message, expected in pairs:
                begun = clock()
                pending = send(message)
                if pending is not None:
                    await pending
                if await recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
                latencies.add(clock() - begun)
            if latencies.full or time.perf_counter() >= end:
                return latencies.figures(options)

    return Loop(prepare, figures=figures)


async def _pipelined(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    """Keeps `window` messages under way: a reply is taken, the next message sent."""
    connection = await connect(options.url, options.ca, options.size)
    pairs = [(message, connection.encode(message)) for message in two_messages(options.size)]
    send, recv = connection.send, connection.recv
    for message, _ in pairs * (options.window // 2):
        pending = send(message)
        if pending is not None:
            await pending

    def prepare(count: int) -> Step:
        turns = pairs * (count // 2)

        async def step() -> int:
            for message, expected in turns:
                if await recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
                pending = send(message)
                if pending is not None:
                    await pending
            return len(turns)

        return step

    async def settle() -> None:
        for _, expected in pairs * (options.window // 2):
            if await recv() != expected:
                raise ContentError("a reply differs from the message that was sent")

    return Loop(prepare, settle=settle)


async def _stream_in(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    connection = await connect(options.url, options.ca, options.size)
    stream = Stream(options.size, connection.encode)
    if style == "iterate":
        # One iterator for all steps, as one `async for` over the connection would have it.
        messages = aiter(connection.messages)
        return Loop(lambda count: _by_iteration(messages, stream, count))
    if style == "many":
        return Loop(lambda count: _by_recv_many(connection.recv_many, stream, count, options.batch))
    return Loop(lambda count: _by_recv(connection.recv, stream, count))


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
        remaining = count
        async for message in messages:
            remaining -= 1
            if not remaining:
                stream.check(message, count)
                return count
        raise ContentError(f"the stream ended after {stream.position + count - remaining} messages")

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


async def check_echo(connect: Connect, options: argparse.Namespace) -> None:
    """Before a sending loop: what is sent must come back unchanged."""
    echo = await connect(echo_url(options.url), options.ca, options.size)
    for message in two_messages(options.size):
        pending = echo.send(message)
        if pending is not None:
            await pending
        if await echo.recv() != echo.encode(message):
            raise ContentError("the echo of a message that was sent differs from it")


async def _send(connect: Connect, style: str, options: argparse.Namespace) -> Loop:
    await check_echo(connect, options)
    connection = await connect(options.url, options.ca, options.size)
    sink = Sink(options.size)
    messages = two_messages(options.size)
    send, writable, drain = connection.send, connection.writable, connection.drain
    send_each = connection.send_each

    def prepare(count: int) -> Step:
        turns = messages * (count // 2)

        async def step() -> int:
            if send_each is not None:
                send_each(turns)
            for message in turns if send_each is None else ():
                try:
                    pending = send(message)
                except BlockingIOError:
                    if writable is None:
                        raise
                    await writable()
                    pending = send(message)
                if pending is not None:
                    await pending
            if drain is not None:
                await drain()
            sink.sent += len(turns)
            return len(turns)

        return step

    async def finish() -> None:
        sink.check(await connection.report())

    return Loop(prepare, finish, limit=max(2, SEND_STEP_BYTES // options.size))


LOOPS: dict[str, Callable[[Connect, str, argparse.Namespace], Awaitable[Loop]]] = {
    "round-trip": _round_trip,
    "stream-in": _stream_in,
    "send": _send,
    "pipelined": _pipelined,
}
