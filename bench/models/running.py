"""A workload as steps on an open connection: warm-up, window, and what surrounds them. One of `twins.TWO_WAYS`."""

import argparse
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from models import program
from models.connection import Connection
from models.content import payload_of
from models.latency import WINDOW_SHARE
from models.program import STEP_SECONDS, Window
from models.twins import AWAITS

__all__ = ["Loop", "Step", "ask", "done", "run", "turn", "within"]

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


async def run(loop: Loop, options: argparse.Namespace) -> dict[str, object]:
    """Warms up, then runs a workload on its open connection for one window."""
    step = await _warm_up(loop, options.warmup)
    loop.begin()
    count, window = 0, Window(options)
    while time.perf_counter() < window.end:
        count += await step()
    count += await loop.finish() or 0
    window.stop()
    await loop.settle()
    return window.result(count, **await loop.figures(options.seconds * WINDOW_SHARE))


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


async def ask(connection: Connection) -> Any:
    """Asks the server what it has counted on a connection."""
    if connection.report is not None:
        return await connection.report()
    await done(connection.can("send_text")("report"))
    return payload_of(connection.encode)(await connection.recv())


async def done(pending: Awaitable[object] | None) -> None:
    """Awaits what a `send` has returned, if there is something to await: where a call more does no harm."""
    if pending is not None:
        await pending


async def turn() -> None:
    """Gives what else runs in this thread a turn."""
    if AWAITS:
        await asyncio.sleep(0)


async def within(seconds: float, call: Callable[[], Awaitable[Any]], error: Exception) -> Any:
    """Returns what a call does; fails with the error after so many seconds.

    What blocks cannot be called back: there, the process ends.
    """
    if AWAITS:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await call()
        except TimeoutError:
            if not limit.expired():
                raise
            raise error from None
    timer = threading.Timer(seconds, program.fail, [error])
    timer.daemon = True
    timer.start()
    try:
        return await call()
    finally:
        timer.cancel()
