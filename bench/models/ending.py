"""How connections begin and end: opened and closed in turn, closed by the server. One of `twins.TWO_WAYS`."""

import argparse
import contextlib
import time
from itertools import repeat
from typing import Any

from models.connection import Client
from models.content import ContentError, two_messages
from models.latency import Latencies
from models.program import Window
from models.running import Loop, Step, done, run, turn, within
from models.twins import AWAITS

__all__ = ["CLOSED", "WORKLOADS"]

# By workload, the call that fails.
CLOSED = {"closed-recv": "recv", "closed-send": "send"}

MESSAGE_BYTES = 16
# Until a library has read and reported the server's close frame.
SETTLE_SECONDS = 5.0


async def _open(client: Client, options: argparse.Namespace) -> dict[str, object]:
    """Opens and closes connections, one after the other.

    The time of an opening is that of `connect`, until the connection can be used; the rate is that of the whole:
    opening, an echo that is checked, closing.
    """
    message = two_messages(MESSAGE_BYTES)[0]

    async def one() -> int:
        before = time.perf_counter_ns()
        connection = await client.connect(options.url, options.ca, len(message))
        taken = time.perf_counter_ns() - before
        pending = connection.send(connection.frame(message))
        if pending is not None:
            await pending
        if await connection.recv() != connection.encode(message):
            raise ContentError("the echo of a message that was sent differs from it")
        pending = connection.can("close")()
        if pending is not None:
            await pending
        return taken

    await one()
    end = time.perf_counter() + options.warmup
    while time.perf_counter() < end:
        await one()
    times, window = Latencies(), Window(options)
    count = 0
    while time.perf_counter() < window.end:
        times.add(await one())
        count += 1
    window.stop()
    return window.result(count, **times.figures())


async def _closed(client: Client, options: argparse.Namespace) -> dict[str, object]:
    """Makes calls on a connection that the server has closed, as fast as they fail.

    Each must raise the exception that the library's documentation names for this, or what it does raise where it names
    none: that is what an application catches.
    """
    call = CLOSED[options.workload]
    closed = client.closed_error(call)
    connection = await client.connect(options.url, options.ca, MESSAGE_BYTES)
    message = connection.frame(two_messages(MESSAGE_BYTES)[0])
    send, recv = connection.send, connection.recv
    fail: Any = recv if call == "recv" else lambda: send(message)

    async def end() -> None:
        # What some tell at first, the close frame or nothing, is no exception, and some learn of it by receiving only.
        with contextlib.suppress(*map(client.closed_error, client.closed)):
            await recv()
            # An awaiting call may report it once and then hang.
            while not AWAITS:
                await recv()
        with contextlib.suppress(closed):
            while True:
                await done(fail())
                await turn()

    silence = ContentError(f"nothing told within {SETTLE_SECONDS:.0f} s that the server has closed")
    await within(SETTLE_SECONDS, end, silence)

    def prepare(count: int) -> Step:
        async def step() -> int:
            for _ in repeat(None, count):
                try:
                    pending = fail()
                    if pending is not None:
                        await pending
                except closed:
                    continue
                name = f"{closed.__module__}.{closed.__qualname__}"
                raise ContentError(f"{call} on a closed connection did not raise {name}")
            return count

        return step

    return await run(Loop(prepare), options)


# They do not run in steps, or not in steps alone.
WORKLOADS = {"open": _open, **dict.fromkeys(CLOSED, _closed)}
