"""Honest clients: how late their echoes are, and how long their connections take to open.

Their functions serve connections of both kinds of API: ``campaigns.common.calls``.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from .calls import attempt

PAUSE = 0.005
# Longer than any echo may take.
LONG = 30.0


class Measured:
    """Measurements of several threads or tasks; times are in seconds."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.opened: list[float] = []
        self.problems: collections.Counter[str] = collections.Counter()

    def report(self) -> dict[str, Any]:
        late = sorted(self.late)
        figures: dict[str, Any] = {
            "count": len(late),
            "opened": len(self.opened),
            "opened_last": max(self.opened, default=0),
            "problems": dict(self.problems.most_common(5)),
        }
        if late:
            figures |= {"p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100]}
        return figures


@contextlib.asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """Enters a context manager of either kind."""
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


class Clients:
    """Clients of one kind of API.

    Args:
        measured: Their measurements.
        dial: Returns the context manager of a connection, for the number of a client.
        is_over: Whether they should end.
        blocking: Whether the connections block.
        pause: Seconds between two messages.
    """

    def __init__(
        self,
        measured: Measured,
        dial: Callable[[int], Any],
        is_over: Callable[[], bool],
        *,
        blocking: bool,
        pause: float = PAUSE,
    ) -> None:
        self.measured = measured
        self.dial = dial
        self.is_over = is_over
        self.blocking = blocking
        self.pause = pause

    async def sleep(self, seconds: float) -> None:
        await attempt(time.sleep if self.blocking else asyncio.sleep, seconds)

    async def converse(self, ws: Any, message: str) -> None:
        """Sends a message, and waits for its echo; relays have other messages in between."""
        began = time.monotonic()
        await attempt(ws.send, message)
        while True:
            got = await (attempt(ws.recv, LONG) if self.blocking else asyncio.wait_for(ws.recv(), LONG))
            if got == message:
                break
            self.other(got)
        self.measured.late.append(time.monotonic() - began)

    def other(self, message: Any) -> None:
        """Another message was received: a defect of an echo."""
        raise ValueError("another echo")

    async def stay(self, number: int) -> None:
        """Talks on one connection; at least once, however late."""
        async with entered(self.dial(number)) as ws:
            turn = 0
            while not turn or not self.is_over():
                turn += 1
                await self.converse(ws, f"{number} {turn}")
                await self.sleep(self.pause)

    async def come(self, number: int) -> None:
        """Opens one connection after the other."""
        while True:
            began = time.monotonic()
            async with entered(self.dial(number)) as ws:
                await self.converse(ws, f"{number}")
                self.measured.opened.append(time.monotonic() - began)
            if self.is_over():
                return
            number += 1
            await self.sleep(10 * self.pause)

    async def guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs one client; its exception is a problem of the measurement."""
        try:
            await work
        except Exception as exc:
            self.measured.problems[repr(exc)] += 1
