"""Round trips and sending with permessage-deflate, for what awaits and what blocks.

The messages are text, many different ones in turn: a library remembers what it sent last, and two messages that took
turns would be nothing but references to themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle, islice
from typing import Any

from models import memory, stepping
from models.abilities import Abilities
from models.awaiting import SEND_STEP_BYTES, Awaiting, Loop, Step
from models.content import ContentError, Sink
from models.program import echo_url
from models.texts import texts

__all__ = ["AWAITING", "BLOCKING", "IDLE", "idle"]

IDLE = "deflate-idle"
IDLE_BYTES = 256


async def idle(abilities: Abilities, options: argparse.Namespace) -> dict[str, object]:
    """Measures the memory of connections at rest, each after the echo of one text that can be compressed."""
    assert abilities.deflate is not None
    return await memory.measure(abilities.deflate, options, texts("repetitive", IDLE_BYTES)[0])


async def _await_round_trip(abilities: Abilities, options: argparse.Namespace) -> Loop:
    assert abilities.deflate is not None
    connection = await abilities.deflate(options.url, options.ca, options.size)
    turns = _turns(connection, options)
    send, recv = connection.send, connection.recv

    def prepare(count: int) -> Step:
        async def step() -> int:
            for message, expected in islice(turns, count):
                pending = send(message)
                if pending is not None:
                    await pending
                if await recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
            return count

        return step

    return Loop(prepare)


async def _await_send(abilities: Abilities, options: argparse.Namespace) -> Loop:
    assert abilities.deflate is not None
    echo = await abilities.deflate(echo_url(options.url), options.ca, options.size)
    for message, expected in islice(_turns(echo, options), 2):
        pending = echo.send(message)
        if pending is not None:
            await pending
        if await echo.recv() != expected:
            raise ContentError("the echo of a message that was sent differs from it")

    connection = await abilities.deflate(options.url, options.ca, options.size)
    sink = Sink(options.size)
    messages = cycle(texts(options.content, options.size))
    send, drain = connection.send, connection.drain

    def prepare(count: int) -> Step:
        async def step() -> int:
            for message in islice(messages, count):
                pending = send(message)
                if pending is not None:
                    await pending
            if drain is not None:
                await drain()
            sink.sent += count
            return count

        return step

    async def finish() -> None:
        sink.check(await connection.report())

    return Loop(prepare, finish, limit=max(2, SEND_STEP_BYTES // options.size))


def _block_round_trip(abilities: Abilities, options: argparse.Namespace) -> stepping.Loop:
    assert abilities.deflate is not None
    connection = abilities.deflate(options.url, options.ca, options.size)
    turns = cycle([connection.encode(message) for message in texts(options.content, options.size)])
    send, recv = connection.send, connection.recv

    def prepare(count: int) -> stepping.Step:
        def step() -> int:
            for message, expected in islice(turns, count):
                send(message)
                if recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
            return count

        return step

    return stepping.Loop(prepare)


def _block_send(abilities: Abilities, options: argparse.Namespace) -> stepping.Loop:
    assert abilities.deflate is not None
    echo = abilities.deflate(echo_url(options.url), options.ca, options.size)
    for message, expected in map(echo.encode, texts(options.content, options.size)[:2]):
        echo.send(message)
        if echo.recv() != expected:
            raise ContentError("the echo of a message that was sent differs from it")

    connection = abilities.deflate(options.url, options.ca, options.size)
    sink = Sink(options.size)
    messages = cycle([connection.encode(message)[0] for message in texts(options.content, options.size)])
    send = connection.send

    def prepare(count: int) -> stepping.Step:
        def step() -> int:
            for message in islice(messages, count):
                send(message)
            sink.sent += count
            return count

        return step

    return stepping.Loop(prepare, lambda: sink.check(connection.report()))


def _turns(connection: Awaiting, options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    return cycle([(message, connection.encode(message)) for message in texts(options.content, options.size)])


AWAITING: dict[str, Callable[[Abilities, argparse.Namespace], Awaitable[Loop]]] = {
    "deflate-round-trip": _await_round_trip,
    "deflate-send": _await_send,
}

BLOCKING: dict[str, Callable[[Abilities, argparse.Namespace], stepping.Loop]] = {
    "deflate-round-trip": _block_round_trip,
    "deflate-send": _block_send,
}
