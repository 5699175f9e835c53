"""How soon a library tells its caller that the peer is dead: one that has opened the connection and never answers.

Time runs from when the connection is ready. The library pings after `interval` and gives up `timeout` later: whoever
tells sooner has noticed something else.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from models.abilities import Abilities, Patience, Watched
from models.content import ContentError
from models.latency import Latencies
from models.program import result
from models.usage import Usage

__all__ = ["WORKLOAD", "awaiting", "blocking"]

WORKLOAD = "dead"

# Several times what the slowest needs: tornado, 5.4 s. Less than what the harness waits for.
LIMIT_SECONDS = 15.0
NOT_NOTICED = f"a dead peer was not noticed within {LIMIT_SECONDS:.0f} s"

# Clocks and timers of event loops are not the same, and may be coarse.
TOLERANCE = 0.95


async def awaiting(abilities: Abilities, options: argparse.Namespace) -> dict[str, object]:
    """Opens connections together, waits until the end of each is told; again until the window is over."""
    watch = abilities.watch
    assert watch is not None
    patience = Patience(options.interval, options.timeout)

    async def one() -> int:
        watched = await watch(options.url, options.ca, patience)
        before = time.perf_counter_ns()
        told: object
        try:
            async with asyncio.timeout(LIMIT_SECONDS) as limit:
                told = await watched.noticed()
        except Exception as error:
            if limit.expired():
                raise ContentError(NOT_NOTICED) from None
            told = error
        return _checked(watched, told, time.perf_counter_ns() - before, patience)

    times: list[int] = []
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    while not times or time.perf_counter() < end:
        times += await asyncio.gather(*(one() for _ in range(options.connections)))
    return result(len(times), Usage.now(options.server_pid) - since, **Latencies(times).figures())


def blocking(abilities: Abilities, options: argparse.Namespace) -> dict[str, object]:
    """Does the same with a thread for each connection."""
    watch = abilities.watch
    assert watch is not None
    patience = Patience(options.interval, options.timeout)

    def one(_: int) -> int:
        watched = watch(options.url, options.ca, patience)
        before = time.perf_counter_ns()
        told: object
        try:
            told = watched.noticed()
        except Exception as error:
            told = error
        return _checked(watched, told, time.perf_counter_ns() - before, patience)

    times: list[int] = []
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    threads = ThreadPoolExecutor(options.connections)
    while not times or time.perf_counter() < end:
        try:
            times += threads.map(one, range(options.connections), timeout=LIMIT_SECONDS)
        except TimeoutError:
            # The threads go on waiting: they end with the process.
            raise ContentError(NOT_NOTICED) from None
    return result(len(times), Usage.now(options.server_pid) - since, **Latencies(times).figures())


def _checked(watched: Watched, told: object, nanoseconds: int, patience: Patience) -> int:
    if not watched.tells(told):
        raise ContentError(f"a dead peer was told as {told!r:.200}")
    if nanoseconds < TOLERANCE * 1e9 * (patience.interval + patience.timeout):
        raise ContentError(f"the connection ended after {nanoseconds / 1e9:.3f} s, before the peer could be known dead")
    return nanoseconds
