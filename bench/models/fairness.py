"""Other threads beside busy connections: how late one wakes that sleeps, how much one computes, what that costs.

The connections make round trips as fast as they can, in a thread with an event loop or in a thread each; the main
thread does the other work. Either the server is another process, or it is of the same library and in this process: in
the loop of the clients, or in threads of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from models import crowd
from models.connection import Client
from models.content import ContentError
from models.latency import Latencies
from models.program import Window, run_on
from models.twins import blocking

__all__ = ["SERVING", "WORKLOADS", "measure"]

WORKLOADS = ("sleep", "compute")
SERVING = ("serving-sleep", "serving-compute")
"""The measurement with the server in this process too."""

# What the main thread sleeps for, again and again.
SLEEP_SECONDS = 0.005
# The least that a window tells anything in: a thread that computes has the interpreter for 5 ms at a time.
LEAST_SECONDS = 0.2
# Until all connections are open, and from the end of the window until the last replies were checked.
LIMIT_SECONDS = 10.0
# Steps of a unit of work: some 0.1 ms.
WORK = 1000


class _Crowd(crowd.Crowd):
    """Connections in other threads than the one that measures."""

    def __init__(self, connections: int) -> None:
        super().__init__(connections)
        self._opened, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self.ready = threading.Event()
        self._error: BaseException | None = None

    async def measure(self, ends: list[Awaitable[object]], options: argparse.Namespace) -> dict[str, object]:
        """Runs until the thread that measures says that it is over."""
        everybody = asyncio.gather(*ends)
        self._opened.release(len(self.counts))
        await everybody
        self._ended.release(len(self.counts))
        return {}

    def join(self, connect: Callable[[], Any], round_trips: Any, number: int, options: argparse.Namespace) -> None:
        """Is the thread of a connection that blocks: opens it, makes round trips when all are open."""
        try:
            connection = connect()
            self._opened.release()
            self.ready.wait()
            round_trips(connection, number, self, options)
            self._ended.release()
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Told by a thread that a connection has failed."""
        self._error = self._error or error
        for event in (self._opened, self._ended):
            event.release(len(self.counts))

    def wait_opened(self) -> None:
        """Waits until all are open."""
        self._wait(self._opened)
        self.ready.set()

    def end(self) -> None:
        """Ends the connections, and checks that each has got on."""
        self.over = True
        self._wait(self._ended)
        self.check()

    def _wait(self, event: threading.Semaphore) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        for _ in self.counts:
            if not event.acquire(timeout=max(0.0, end - time.monotonic())):
                raise ContentError(f"connections in other threads did not get on within {LIMIT_SECONDS:.0f} s")
        if self._error is not None:
            raise self._error


def measure(client: Client, options: argparse.Namespace, *, awaits: bool) -> dict[str, object]:
    """Measures the round trips with the other work, and half as long each before and after it without."""
    computes = options.workload.endswith("compute")
    connections = _Crowd(options.connections)
    whole = max(options.seconds, LEAST_SECONDS)
    half = whole / 2
    alone = [_compute(half)] if computes else []
    kept = (_start_loop if awaits else _start_threads)(client, options, connections)
    connections.wait_opened()
    time.sleep(options.warmup)
    quiet = [_count(connections, half)]

    before, window = sum(connections.counts), Window(options)
    figures = {"share": _compute(whole)} if computes else _sleep(whole)
    seconds, count = window.stop(), sum(connections.counts) - before

    quiet.append(_count(connections, half))
    connections.end()
    if computes:
        alone.append(_compute(half))
        figures["share"] /= sum(alone) / len(alone)
    most = sum(counted for counted, _ in quiet) / sum(seconds for _, seconds in quiet)
    if not most:
        raise ContentError("there were no round trips without the other work: the window is too short")
    del kept
    return window.result(count, kept=count / seconds / most, **figures)


def _start_loop(client: Client, options: argparse.Namespace, connections: _Crowd) -> None:
    async def body() -> None:
        server: object = None
        try:
            if options.workload in SERVING and client.serve is not None:
                options.url, server = await client.serve()
            await crowd.measure(client, options, connections)
        except BaseException as error:
            connections.fail(error)
            return
        # What a loop does while it closes is not measured: the process ends first.
        await asyncio.Event().wait()
        del server

    threading.Thread(target=lambda: run_on(options.loop, body()), daemon=True).start()


def _start_threads(client: Client, options: argparse.Namespace, connections: _Crowd) -> object:
    server: object = None
    if options.workload in SERVING and client.serve is not None:
        options.url, server = client.serve()
    # Loaded once, before there are threads.
    round_trips = blocking("models.exchanging").round_trips
    for number in range(options.connections):
        arguments = (lambda: client.connect(options.url, options.ca, options.size), round_trips, number, options)
        threading.Thread(target=connections.join, args=arguments, daemon=True).start()
    return server


def _count(connections: _Crowd, seconds: float) -> tuple[int, float]:
    """Returns the round trips while nothing else is done, and the seconds."""
    before, since = sum(connections.counts), time.perf_counter()
    time.sleep(seconds)
    return sum(connections.counts) - before, time.perf_counter() - since


def _sleep(seconds: float) -> dict[str, Any]:
    """Sleeps again and again; returns how late it woke, in microseconds."""
    late, clock, sleep = Latencies(), time.perf_counter_ns, time.sleep
    due = round(SLEEP_SECONDS * 1e9)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = clock()
        sleep(SLEEP_SECONDS)
        late.add(max(0, clock() - begun - due))
    figures = late.figures()
    return {f"late_{name}": figures[name] for name in ("p50", "p99", "max")}


def _compute(seconds: float) -> float:
    """Returns the units of work a second that this thread does, in Python alone."""
    done, expected = 0, _work()
    since = time.perf_counter()
    end = since + seconds
    while (now := time.perf_counter()) < end or not done:
        if _work() != expected:
            raise ContentError("the other work has another result")
        done += 1
    return done / (now - since)


def _work() -> int:
    value = 0
    for number in range(WORK):
        value = (value * 31 + number) & 0xFFFF
    return value
