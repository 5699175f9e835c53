"""All activities at once on our loop: timers, signals, subprocesses, threads, streams, and WebSockets under load.

Nothing may be lost, and nothing may have to wait for the load to end. Each activity counts and checks its own work.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import os
import random
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

import wirespeed
from support.checks import no_leaks
from support.native import NativeEcho
from support.selector_oracle import OracleSelector
from wirespeed.asyncio.loop import EventLoop, Selector, run

pytestmark = [
    pytest.mark.wirespeed_only("the loop is ours"),
    pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll"),
    pytest.mark.serial,
]

DURATION = 3.0

# The maximum lateness of a timer or a signal: far more than any iteration takes, far less than the load lasts.
LATE = 1.0


@dataclasses.dataclass
class Load:
    """The state that activities share: their end, their counts, and their waiting times."""

    end: float
    done: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    late: dict[str, float] = dataclasses.field(default_factory=dict)

    def goes_on(self) -> bool:
        return time.monotonic() < self.end

    def count(self, name: str, *, waited: float = 0.0) -> None:
        self.done[name] += 1
        self.late[name] = max(self.late.get(name, 0.0), waited)


# Activities


async def sleep(load: Load) -> None:
    chance = random.Random(1)
    while load.goes_on():
        delay = chance.uniform(0.0, 0.02)
        due = time.monotonic() + delay
        await asyncio.sleep(delay)
        load.count("sleep", waited=time.monotonic() - due)


async def cancel_timers(load: Load) -> None:
    """Cancels so many timers that the loop replaces its list of timers again and again."""
    loop = asyncio.get_running_loop()
    while load.goes_on():
        due = loop.time() + 0.01
        kept = loop.create_future()
        loop.call_at(due, kept.set_result, None)
        for timer in [loop.call_later(30, load.count, "timer that was cancelled") for _ in range(150)]:
            timer.cancel()
        await kept
        load.count("timer", waited=loop.time() - due)


async def handle_signals(load: Load) -> None:
    """One signal at a time, as the system merges them: another thread sends, and waits until it was handled."""
    loop = asyncio.get_running_loop()
    handled = threading.Event()
    loop.add_signal_handler(signal.SIGUSR1, handled.set)
    before = signal.signal(signal.SIGUSR2, lambda *_: handled.set())

    def send() -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2) * 10_000:
            if not load.goes_on():
                return
            handled.clear()
            start = time.monotonic()
            os.kill(os.getpid(), number)
            assert handled.wait(10), f"{number!r} was not handled"
            load.count(number.name, waited=time.monotonic() - start)
            time.sleep(0.005)

    try:
        await asyncio.to_thread(send)
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)
        signal.signal(signal.SIGUSR2, before)


async def run_processes(load: Load) -> None:
    while load.goes_on():
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", "cat; exit 7", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        data = os.urandom(200_000)
        output, _ = await process.communicate(data)
        assert output == data
        assert process.returncode == 7
        load.count("process")


async def call_from_threads(load: Load) -> None:
    loop = asyncio.get_running_loop()

    def call() -> None:
        while load.goes_on():
            start = time.monotonic()
            called = threading.Event()
            loop.call_soon_threadsafe(called.set)
            assert called.wait(10), "a call from another thread did not arrive"
            load.count("call from a thread", waited=time.monotonic() - start)
            time.sleep(0.001)

    await asyncio.gather(*(asyncio.to_thread(call) for _ in range(3)))


async def use_threads(load: Load) -> None:
    while load.goes_on():
        assert await asyncio.to_thread(sum, range(1000)) == 499500
        load.count("thread")


async def use_streams(load: Load) -> None:
    """TCP through transports of the standard library, both ends on this loop."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        while load.goes_on():
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for _ in range(20):
                data = os.urandom(5000)
                writer.write(data)
                assert await reader.readexactly(len(data)) == data
                load.count("stream")
            writer.close()
            await writer.wait_closed()


async def use_sockets(load: Load) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        while load.goes_on():
            data = os.urandom(100)
            received, _ = await asyncio.gather(loop.sock_recv(ours, 1000), loop.sock_sendall(theirs, data))
            assert received == data
            load.count("socket")


async def iterate(load: Load) -> None:
    """A callback is always scheduled: the loop never blocks."""
    while load.goes_on():
        await asyncio.sleep(0)
        load.count("iteration")


EVERYTHING = [
    sleep,
    cancel_timers,
    handle_signals,
    run_processes,
    call_from_threads,
    use_threads,
    use_streams,
    use_sockets,
]


# WebSockets


def round_trips(uri: str, size: int) -> Callable[[Load], Coroutine[Any, Any, None]]:
    async def exchange(load: Load) -> None:
        async with wirespeed.connect(uri, compression=None) as ws:
            while load.goes_on():
                for _ in range(50):
                    message = os.urandom(size)
                    await ws.send(message)
                    assert await ws.recv() == message
                    load.count(f"round trip of {size}")

    return exchange


def flood(uri: str) -> Callable[[Load], Coroutine[Any, Any, None]]:
    async def receive(load: Load) -> None:
        async with wirespeed.connect(f"{uri}/blast?size=64", compression=None) as ws:
            async for message in ws:
                assert len(message) == 64
                load.count("message of a flood")
                if not load.goes_on():
                    break
            ws.abort()

    return receive


def callbacks(uri: str) -> Callable[[Load], Coroutine[Any, Any, None]]:
    async def exchange(load: Load) -> None:
        class Echo(wirespeed.Listener):
            def on_open(self, ws: Any) -> None:
                ws.send_nowait(b"callback")

            def on_message(self, ws: Any, message: Any) -> None:
                assert message == b"callback"
                load.count("callback")
                if load.goes_on():
                    ws.send_nowait(message)
                else:
                    ended.set()

        ended = asyncio.Event()
        async with await wirespeed.connect(uri, listener=Echo(), compression=None):
            await ended.wait()

    return exchange


# The tests


async def under_load(activities: Sequence[Callable[[Load], Coroutine[Any, Any, None]]]) -> Load:
    load = Load(time.monotonic() + DURATION)
    tasks = [asyncio.create_task(activity(load)) for activity in activities]
    done, _ = await asyncio.wait(tasks, timeout=DURATION + 20)
    for task in tasks:
        assert task in done, f"{task!r} does not end"
        task.result()
    return load


def check(load: Load, expected: dict[str, int]) -> None:
    too_few = {name: load.done[name] for name, least in expected.items() if load.done[name] < least}
    assert not too_few, f"{too_few} of {load.done}"
    assert load.done["timer that was cancelled"] == 0
    too_late = {name: late for name, late in load.late.items() if late > LATE}
    assert not too_late, f"seconds late: {too_late}"


# Low, because on a busy machine there is little time for each. On a quiet one it is a hundred times as much.
EXPECTED = {
    "sleep": 10,
    "timer": 10,
    "SIGUSR1": 5,
    "SIGUSR2": 5,
    "process": 2,
    "call from a thread": 20,
    "thread": 10,
    "stream": 20,
    "socket": 20,
}

KINDS = [OracleSelector, *([Selector] if Selector.native_class is not None else [])]


@pytest.mark.parametrize("busy_poll", [0.0, 0.01])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_everything_at_once(kind: type[Selector], busy_poll: float) -> None:
    with no_leaks():
        loop = EventLoop(kind(busy_poll=busy_poll))
        try:
            load = loop.run_until_complete(under_load(EVERYTHING))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()
    check(load, EXPECTED)


@pytest.mark.skipif(Selector.native_class is None, reason="this system has no epoll")
@pytest.mark.parametrize("busy_poll", [0.0, 0.01])
@pytest.mark.parametrize("busy", [False, True], ids=["", "always-scheduled"])
def test_everything_at_once_with_websockets(native_echo: NativeEcho, busy_poll: float, busy: bool) -> None:
    """Round trips for which the selector need not return, a flood, and callbacks."""
    uri = native_echo.uri
    websockets = [round_trips(uri, 16), round_trips(uri, 16), round_trips(uri, 100_000), flood(uri), callbacks(uri)]
    load = run(under_load([*EVERYTHING, *websockets, *([iterate] if busy else [])]), busy_poll=busy_poll)
    check(
        load,
        {
            **EXPECTED,
            "round trip of 16": 200,
            "round trip of 100000": 50,
            "message of a flood": 1000,
            "callback": 100,
        },
    )
