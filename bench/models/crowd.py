"""Many connections in one process: each has a message under way all the time, in a task or in callbacks of its own."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

from models.callbacks import Course
from models.connection import Client
from models.content import ContentError
from models.exchanging import round_trips
from models.program import Window

__all__ = ["Crowd", "measure", "open_all"]

# Connections that are opened at once.
AT_ONCE = 32


class Crowd:
    """What all connections share.

    Attributes:
        counts: the round trips of each.
        over: set for each to come to its end.
    """

    def __init__(self, connections: int) -> None:
        self.counts = [0] * connections
        self.over = False

    async def measure(self, ends: list[Awaitable[object]], options: argparse.Namespace) -> dict[str, object]:
        """Counts for one window, then waits until the last replies were checked."""
        everybody = asyncio.gather(*ends)
        await asyncio.wait([everybody], timeout=options.warmup)
        before, window = sum(self.counts), Window(options)
        await asyncio.wait([everybody], timeout=options.seconds)
        window.stop()
        count = sum(self.counts) - before
        self.over = True
        await everybody
        self.check()
        return window.result(count)

    def check(self) -> None:
        """Checks at the end that every connection has got on."""
        if not all(self.counts):
            raise ContentError(f"{self.counts.count(0)} of {len(self.counts)} connections made no round trip")


class _Member(Course):
    """The callbacks of one connection among many."""

    def __init__(self, crowd: Crowd, number: int, options: argparse.Namespace) -> None:
        super().__init__(argparse.Namespace(**vars(options) | {"workload": "round-trip"}))
        self._crowd, self._number = crowd, number

    def again(self) -> int:
        """Counts a step; returns the messages of the next one, 0 if the window is over."""
        self._crowd.counts[self._number] += self.count
        return self.finish() if self._crowd.over else self.count

    async def end(self) -> None:
        """Waits for the end."""
        await self._over


async def measure(client: Client, options: argparse.Namespace, crowd: Crowd | None = None) -> dict[str, object]:
    """Measures connections that each make round trips; the crowd says how."""
    crowd = crowd or Crowd(options.connections)
    kept: list[object] = [None] * options.connections
    ends: list[Awaitable[object]] = []

    async def open_one(number: int) -> None:
        if client.listen is not None:
            member = _Member(crowd, number, options)
            kept[number] = await client.listen(options.url, options.ca, options.size, member)
            ends.append(member.end())
        else:
            kept[number] = connection = await client.connect(options.url, options.ca, options.size)
            ends.append(round_trips(connection, number, crowd, options))

    await open_all(open_one, range(options.connections))
    answer = await crowd.measure(ends, options)
    kept.clear()
    return answer


async def open_all(open_one: Callable[[int], Awaitable[None]], numbers: range) -> None:
    """Opens connections, some at once."""
    remaining = iter(numbers)

    async def open_next() -> None:
        for number in remaining:
            await open_one(number)

    await asyncio.gather(*(open_next() for _ in range(AT_ONCE)))
