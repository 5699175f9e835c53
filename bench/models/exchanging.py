"""Messages and their replies: one at a time, or several under way. One of `twins.TWO_WAYS`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice, repeat
from typing import TYPE_CHECKING, Any

from models.connection import Client, Connect, Connection
from models.content import ContentError, two_messages, unwrapping
from models.latency import Latencies
from models.program import echo_url
from models.running import Loop, Step, done
from models.stamps import Stamps
from models.texts import texts

if TYPE_CHECKING:
    from models.crowd import Crowd

__all__ = ["WORKLOADS", "check_echo", "exchange", "in_turn", "round_trips", "ways"]


def ways(client: Client, options: argparse.Namespace) -> tuple[Connect, Sequence[Any]]:
    """Returns how a workload connects, and its messages: two that take turns, or, to be compressed, many texts."""
    if options.workload.startswith("deflate"):
        assert client.deflate is not None
        return client.deflate, texts(options.content, options.size)
    at_once = client.at_once if options.workload == "send-each" else None
    return at_once or client.connect, two_messages(options.size)


def in_turn(items: Sequence[Any], count: int) -> Callable[[], Iterable[Any]]:
    """Returns what gives a step so many items: two take turns, more go on where the step before has ended."""
    if len(items) == 2:
        turns = [*items] * (count // 2)
        return lambda: turns
    forever = cycle(items)
    return lambda: islice(forever, count)


def pairs_of(connection: Connection, messages: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Returns what `send` takes of each message, and what `recv` must return for it."""
    return [(connection.frame(message), connection.encode(message)) for message in messages]


async def exchange(
    connection: Connection, messages: Sequence[Any], options: argparse.Namespace, window: int = 1
) -> Loop:
    """Sends a message, takes the reply to the one that was sent `window` - 1 messages before.

    Messages that are under way together are two that take turns.
    """
    what = "message" if isinstance(messages[0], (bytes, str)) else "document"
    wrong = ContentError(f"a reply differs from the {what} that was sent")
    pairs = pairs_of(connection, messages)
    send, recv = connection.send, connection.recv
    early = list(islice(cycle(pairs), window - 1))
    for message, _ in early:
        await done(send(message))
    turns_of = [(pairs[(number + window - 1) % len(pairs)][0], expected) for number, (_, expected) in enumerate(pairs)]

    def prepare(count: int) -> Step:
        turns = in_turn(turns_of, count)

        async def step() -> int:
            for message, expected in turns():
                pending = send(message)
                if pending is not None:
                    await pending
                if await recv() != expected:
                    raise wrong
            return count

        return step

    async def settle() -> None:
        for _, expected in early:
            if await recv() != expected:
                raise wrong

    async def figures(seconds: float) -> dict[str, object]:
        if early:
            return {}
        latencies, clock = Latencies(), time.perf_counter_ns
        end = time.perf_counter() + seconds
        while True:
            for message, expected in pairs:
                begun = clock()
                pending = send(message)
                if pending is not None:
                    await pending
                if await recv() != expected:
                    raise wrong
                latencies.add(clock() - begun)
            if latencies.full or time.perf_counter() >= end:
                return latencies.figures()

    return Loop(prepare, settle=settle, figures=figures)


async def check_echo(connect: Connect, options: argparse.Namespace, messages: Iterable[Any]) -> Connection:
    """Checks that messages come back unchanged on a connection of its own, and returns that."""
    echo: Connection = await connect(echo_url(options.url), options.ca, options.size)
    for message, expected in pairs_of(echo, messages):
        await done(echo.send(message))
        if await echo.recv() != expected:
            raise ContentError("the echo of a message that was sent differs from it")
    return echo


async def round_trips(connection: Connection, number: int, crowd: Crowd, options: argparse.Namespace) -> None:
    """Makes the round trips of one connection among many, and counts them, until it is over."""
    pairs = pairs_of(connection, two_messages(options.size))
    send, recv, counts = connection.send, connection.recv, crowd.counts
    while not crowd.over:
        for message, expected in pairs:
            pending = send(message)
            if pending is not None:
                await pending
            if await recv() != expected:
                raise ContentError("a reply differs from the message that was sent")
        counts[number] += len(pairs)


async def _exchange(client: Client, options: argparse.Namespace) -> Loop:
    connect, messages = ways(client, options)
    window = options.window if options.workload == "pipelined" else 1
    return await exchange(await connect(options.url, options.ca, options.size), messages, options, window)


async def _one_way(client: Client, options: argparse.Namespace) -> Loop:
    """Times each way by the stamps of the server, with one message under way, or several."""
    connection = await client.connect(options.url, options.ca, options.size)
    stamps = Stamps(options.size, connection.frame)
    payload = unwrapping(connection.encode, options.size)
    send, recv, clock = connection.send, connection.recv, time.monotonic_ns
    others = options.window - 1 if options.workload == "one-way-window" else 0
    for _ in repeat(None, others):
        await done(send(stamps.message()))

    def prepare(count: int) -> Step:
        async def step() -> int:
            for _ in repeat(None, count):
                pending = send(stamps.message())
                if pending is not None:
                    await pending
                reply = await recv()
                now = clock()
                stamps.take(payload(reply), now)
            return count

        return step

    async def settle() -> None:
        for _ in repeat(None, others):
            reply = await recv()
            stamps.take(payload(reply), clock())

    async def figures(seconds: float) -> dict[str, object]:
        return stamps.figures()

    return Loop(prepare, begin=stamps.clear, settle=settle, figures=figures)


WORKLOADS = {
    **dict.fromkeys(("round-trip", "pipelined", "deflate-round-trip"), _exchange),
    **dict.fromkeys(("one-way", "one-way-window"), _one_way),
}
