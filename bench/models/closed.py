"""Calls on a connection that the server has closed, as fast as they fail, for what awaits and what blocks.

Each must raise the exception that the library's documentation names for this: that is what an application catches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import repeat
from typing import TYPE_CHECKING

from models import program, stepping
from models.abilities import Abilities
from models.awaiting import Awaiting, Connect, Loop, Step
from models.content import ContentError, two_messages

if TYPE_CHECKING:
    from models import blocking as shared

__all__ = ["WORKLOADS", "awaiting", "blocking"]

# By workload, the call that fails.
WORKLOADS = {"closed-recv": "recv", "closed-send": "send"}

MESSAGE_BYTES = 16
# Until a library has read the server's close frame, and says so.
SETTLE_SECONDS = 5.0


async def awaiting(connect: Connect, abilities: Abilities, options: argparse.Namespace) -> Loop:
    """Connects, waits until the server has closed; the steps count exceptions."""
    call = WORKLOADS[options.workload]
    closed = abilities.closed_error(call)
    connection = await connect(options.url, options.ca, MESSAGE_BYTES)
    fail = _await_send(connection) if call == "send" else connection.recv
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            await _await_end(connection, fail, closed)
    except TimeoutError:
        raise ContentError(f"nothing told within {SETTLE_SECONDS:.0f} s that the server has closed") from None

    def prepare(count: int) -> Step:
        async def step() -> int:
            for _ in repeat(None, count):
                try:
                    pending = fail()
                    if pending is not None:
                        await pending
                except closed:
                    continue
                raise _not_raised(call, closed)
            return count

        return step

    return Loop(prepare)


def blocking(connect: shared.Connect, abilities: Abilities, options: argparse.Namespace) -> stepping.Loop:
    """Connects, waits until the server has closed; the steps count exceptions."""
    call = WORKLOADS[options.workload]
    closed = abilities.closed_error(call)
    connection = connect(options.url, options.ca, MESSAGE_BYTES)
    sent, _ = connection.encode(two_messages(MESSAGE_BYTES)[0])
    send, recv = connection.send, connection.recv
    fail: Callable[[], object] = recv if call == "recv" else lambda: send(sent)
    # What blocks learns of the end by receiving only, and a call that waits for ever cannot be taken back.
    silence = ContentError(f"nothing told within {SETTLE_SECONDS:.0f} s that the server has closed")
    watch = threading.Timer(SETTLE_SECONDS * 2, program.fail, [silence])
    watch.daemon = True
    watch.start()
    end = time.perf_counter() + SETTLE_SECONDS
    with contextlib.suppress(abilities.closed_error("recv")):
        while time.perf_counter() < end:
            recv()
    watch.cancel()

    def prepare(count: int) -> stepping.Step:
        def step() -> int:
            for _ in repeat(None, count):
                try:
                    fail()
                except closed:
                    continue
                raise _not_raised(call, closed)
            return count

        return step

    return stepping.Loop(prepare)


async def _await_end(
    connection: Awaiting, fail: Callable[[], Awaitable[object] | None], closed: type[Exception]
) -> None:
    """Waits until a call fails as it must: what some tell at first, the close frame or None, is no exception."""
    with contextlib.suppress(closed):
        await connection.recv()
    with contextlib.suppress(closed):
        while True:
            pending = fail()
            if pending is not None:
                await pending
            await asyncio.sleep(0)


def _await_send(connection: Awaiting) -> Callable[[], Awaitable[object] | None]:
    message = two_messages(MESSAGE_BYTES)[0]
    send = connection.send
    return lambda: send(message)


def _not_raised(call: str, closed: type[Exception]) -> ContentError:
    return ContentError(f"{call} on a closed connection did not raise {closed.__module__}.{closed.__qualname__}")
