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
from typing import TYPE_CHECKING, Any

from models import crowd, loops
from models.content import ContentError, two_messages
from models.latency import Latencies
from models.program import result
from models.usage import Usage

if TYPE_CHECKING:
    from models import blocking as shared

__all__ = ["SERVING", "WORKLOADS", "Threaded", "in_a_loop", "in_threads"]

WORKLOADS = ("sleep", "compute")

SERVING = ("serving-sleep", "serving-compute")
"""The same, with the server in this process too."""

# What the main thread sleeps for, again and again.
SLEEP_SECONDS = 0.005

# The least that a window tells anything in: a thread that computes has the interpreter for 5 ms at a time.
LEAST_SECONDS = 0.2

# Until all connections are open, and from the end of the window until the last replies were checked.
LIMIT_SECONDS = 10.0

# Steps of a unit of work: some 0.1 ms.
WORK = 1000


class Threaded(crowd.Crowd):
    """Connections in other threads than the one that measures.

    Attributes:
        ready: set when all are open, or one of them has failed.
        done: set when all have come to their end.
        error: why one of them has failed.
    """

    def __init__(self, connections: int) -> None:
        super().__init__(connections)
        self.ready = threading.Event()
        self.done = threading.Event()
        self.error: BaseException | None = None

    async def measure(self, ends: list[Awaitable[object]], options: argparse.Namespace) -> dict[str, object]:
        """Runs until the thread that measures says that it is over."""
        everybody = asyncio.gather(*ends)
        self.ready.set()
        await everybody
        return {}

    def fail(self, error: BaseException) -> None:
        """Told by a thread that a connection has failed."""
        self.error = self.error or error
        self.ready.set()
        self.done.set()

    def wait(self, event: threading.Event) -> None:
        """Waits for `ready` or `done`.

        Raises:
            ContentError: it did not come to that, or a connection has failed.
        """
        if not event.wait(LIMIT_SECONDS):
            raise ContentError(f"connections in other threads did not get on within {LIMIT_SECONDS:.0f} s")
        if self.error is not None:
            raise self.error


def in_a_loop(
    run: Callable[[Threaded], Awaitable[object]],
    serve: Callable[[], Awaitable[tuple[str, object]]] | None,
    options: argparse.Namespace,
) -> dict[str, object]:
    """Measures connections in a thread with the event loop that the options name.

    Args:
        run: opens the connections and makes round trips until it is over.
        serve: starts a server in the loop; returns its URL, and what must be kept.
        options: the parsed command line.
    """

    async def body(connections: Threaded) -> None:
        server: object = None
        try:
            if serve is not None:
                options.url, server = await serve()
            await run(connections)
        except BaseException as error:
            connections.fail(error)
            return
        connections.done.set()
        # What a loop does while it closes is not measured: the process ends first.
        await asyncio.Event().wait()
        del server

    def start(connections: Threaded) -> None:
        threading.Thread(target=lambda: loops.run(options.loop, body(connections)), daemon=True).start()

    return _measure(start, options)


def in_threads(
    connect: shared.Connect, serve: Callable[[], tuple[str, object]] | None, options: argparse.Namespace
) -> dict[str, object]:
    """Measures connections that block, each in a thread of its own.

    Args:
        connect: opens a connection.
        serve: starts a server, in threads of its own; returns its URL, and what must be kept.
        options: the parsed command line.
    """
    kept: list[object] = []

    def start(connections: Threaded) -> None:
        if serve is not None:
            options.url, server = serve()
            kept.append(server)
        opened, ended = _Countdown(connections.ready, options), _Countdown(connections.done, options)
        for number in range(options.connections):
            arguments = (connect, options, connections, number, opened, ended)
            threading.Thread(target=_round_trips, args=arguments, daemon=True).start()

    return _measure(start, options)


class _Countdown:
    """Sets an event when every connection has come so far."""

    def __init__(self, event: threading.Event, options: argparse.Namespace) -> None:
        self._event = event
        self._lock = threading.Lock()
        self._left: int = options.connections

    def count(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._event.set()


def _round_trips(
    connect: shared.Connect,
    options: argparse.Namespace,
    connections: Threaded,
    number: int,
    opened: _Countdown,
    ended: _Countdown,
) -> None:
    try:
        connection = connect(options.url, options.ca, options.size)
        pairs = [connection.encode(message) for message in two_messages(options.size)]
        send, recv, counts = connection.send, connection.recv, connections.counts
        opened.count()
        connections.ready.wait()
        while not connections.over:
            for message, expected in pairs:
                send(message)
                if recv() != expected:
                    raise ContentError("a reply differs from the message that was sent")
            counts[number] += len(pairs)
        ended.count()
    except BaseException as error:
        connections.fail(error)


def _measure(start: Callable[[Threaded], None], options: argparse.Namespace) -> dict[str, object]:
    """Measures the round trips with the other work, and half as long each before and after it without."""
    computes = options.workload.endswith("compute")
    connections = Threaded(options.connections)
    whole = max(options.seconds, LEAST_SECONDS)
    half = whole / 2
    alone = [_compute(half)] if computes else []
    start(connections)
    connections.wait(connections.ready)
    time.sleep(options.warmup)
    quiet = [_count(connections, lambda: time.sleep(half))]

    since, before = Usage.now(options.server_pid), sum(connections.counts)
    figures = {"share": _compute(whole)} if computes else _sleep(whole)
    used, count = Usage.now(options.server_pid) - since, sum(connections.counts) - before

    quiet.append(_count(connections, lambda: time.sleep(half)))
    connections.over = True
    connections.wait(connections.done)
    connections.check()
    if computes:
        alone.append(_compute(half))
        figures["share"] /= sum(alone) / len(alone)
    most = sum(counted for counted, _ in quiet) / sum(seconds for _, seconds in quiet)
    if not most:
        raise ContentError("there were no round trips without the other work: the window is too short")
    return result(count, used, kept=count / used.wall / most, **figures)


def _count(connections: Threaded, wait: Callable[[], object]) -> tuple[int, float]:
    """Returns the round trips while something is waited for, and the seconds."""
    before, since = sum(connections.counts), time.perf_counter()
    wait()
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
