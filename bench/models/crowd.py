"""Many connections in one process: each has a message under way all the time, in a task or in callbacks of its own."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator

from models.awaiting import Awaiting, Connect
from models.callbacks import Course, Listen
from models.content import ContentError, two_messages
from models.program import result
from models.usage import Usage

__all__ = ["WORKLOAD", "Crowd", "by_awaiting", "by_callbacks"]

WORKLOAD = "many"

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
        since, before = Usage.now(options.server_pid), sum(self.counts)
        await asyncio.wait([everybody], timeout=options.seconds)
        used, count = Usage.now(options.server_pid) - since, sum(self.counts) - before
        self.over = True
        await everybody
        self.check()
        return result(count, used)

    def check(self) -> None:
        """Checks at the end that every connection has got on."""
        if not all(self.counts):
            raise ContentError(f"{self.counts.count(0)} of {len(self.counts)} connections made no round trip")


async def by_awaiting(connect: Connect, options: argparse.Namespace, crowd: Crowd | None = None) -> dict[str, object]:
    """Measures connections with a task each; the crowd says how."""
    crowd = crowd or Crowd(options.connections)

    async def round_trips(number: int, connection: Awaiting) -> None:
        pairs = [(message, connection.encode(message)) for message in two_messages(options.size)]
        send, recv, counts = connection.send, connection.recv, crowd.counts
        while not crowd.over:
            for message, expected in pairs:
                pending = send(message)
                if pending is not None:
                    await pending
                if await recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
            counts[number] += len(pairs)

    connections: list[Awaiting] = []

    async def open_next(numbers: Iterator[int]) -> None:
        for _ in numbers:
            connections.append(await connect(options.url, options.ca, options.size))

    await _some_at_once(open_next, options.connections)
    return await crowd.measure([round_trips(*one) for one in enumerate(connections)], options)


class _Member(Course):
    """The callbacks of one connection among many."""

    def __init__(self, crowd: Crowd, number: int, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.workload = "round-trip"
        self._crowd = crowd
        self._number = number
        self.end = self._over

    def again(self) -> int:
        """Counts a step; returns the messages of the next one, 0 if the window is over."""
        self._crowd.counts[self._number] += self.count
        return self._finish() if self._crowd.over else self.count


async def by_callbacks(listen: Listen, options: argparse.Namespace, crowd: Crowd | None = None) -> dict[str, object]:
    """Measures connections with callbacks each; the crowd says how."""
    crowd = crowd or Crowd(options.connections)
    members = [_Member(crowd, number, options) for number in range(options.connections)]
    connections: list[object] = []

    async def open_next(numbers: Iterator[int]) -> None:
        for number in numbers:
            connections.append(await listen(options.url, options.ca, options.size, members[number]))

    await _some_at_once(open_next, options.connections)
    answer = await crowd.measure([member.end for member in members], options)
    connections.clear()
    return answer


async def _some_at_once(open_next: Callable[[Iterator[int]], Awaitable[None]], connections: int) -> None:
    numbers = iter(range(connections))
    await asyncio.gather(*(open_next(numbers) for _ in range(AT_ONCE)))
