"""Shared use: several iterating threads, calls that concern several workers, a loop with other tasks."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import Any

import pytest

import wirespeed
from engine.tools import dial, take, uri
from support.load_scaling import load_scaled
from wirespeed.engine import Connected, Disconnected, Engine, Message, Session
from wirespeed.sync import ClientConnection

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")


@pytest.mark.parametrize("call", ["broadcast", "publish"])
def test_broadcast_goes_to_all_or_none(call: str) -> None:
    """A refused call is repeated: a session that already had the message would get it twice."""
    count = 3000
    with Engine("127.0.0.1", workers=4, mailbox_limit=1) as engine:
        clients = [dial(engine) for _ in range(16)]
        for event in take(engine, 16):
            event.session.subscribe("news")
        got: dict[int, list[str | bytes]] = {}

        def read(number: int, ws: ClientConnection) -> None:
            got[number] = [ws.recv(20) for _ in range(count)]

        threads = [threading.Thread(target=read, args=item) for item in enumerate(clients)]
        for thread in threads:
            thread.start()
        refused = 0
        for number in range(count):
            while True:
                try:
                    if call == "broadcast":
                        engine.broadcast(str(number))
                    else:
                        assert engine.publish("news", str(number)) == 16
                    break
                except BlockingIOError:
                    refused += 1
        for thread in threads:
            thread.join(30)
        for ws in clients:
            ws.close()
        assert refused
        assert got == {number: [str(message) for message in range(count)] for number in range(16)}


def test_broadcast_excludes_echo_paths() -> None:
    """A client at an echo path has no session, and gets no broadcast."""
    engine = Engine("127.0.0.1")
    engine.echo("/echo")
    with engine, dial(engine, "/echo") as echoed, dial(engine, "/room") as member:
        take(engine, 1)
        engine.broadcast("to all")
        assert member.recv(20) == "to all"
        echoed.send("hello")
        assert echoed.recv(20) == "hello"


@pytest.mark.parametrize("seconds", [1e9, 1e19])
def test_very_long_times(seconds: float) -> None:
    options: dict[str, Any] = dict.fromkeys(["open_timeout", "ping_interval", "ping_timeout", "close_timeout"], seconds)
    with Engine("127.0.0.1", workers=1, **options) as engine, dial(engine) as ws:
        assert isinstance(next(engine.batches(timeout=seconds))[0], Connected)
        ws.send("hello")
        assert isinstance(next(engine.batches(timeout=seconds))[0], Message)
        assert engine.wait_for_room(timeout=seconds)


@pytest.mark.parametrize("name", ["mailbox_limit", "max_events", "max_event_bytes"])
def test_limits_that_no_message_fits(name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be 1 or more"):
        Engine("127.0.0.1", **options)


@pytest.mark.parametrize("name", ["max_events", "max_event_bytes"])
def test_limits_of_one(name: str) -> None:
    options: dict[str, Any] = {name: 1}
    with Engine("127.0.0.1", workers=2, **options) as engine:
        events: list[object] = []
        # While there is no room, no client is admitted either.
        taking = threading.Thread(target=lambda: events.extend(take(engine, 202)))
        taking.start()
        with dial(engine) as one, dial(engine) as two:
            for number in range(100):
                one.send(str(number))
                two.send(str(number))
            taking.join(30)
        messages = [event.data for event in events if isinstance(event, Message)]
        assert sorted(messages) == sorted([str(number) for number in range(100)] * 2)


def test_threads_that_iterate() -> None:
    """One thread may get the end before another gets the remaining events: no state of it is kept forever."""
    sys.setswitchinterval(1e-5)
    try:
        with Engine("127.0.0.1", workers=2) as engine:
            kept: list[Any] = []
            hashes: dict[int, set[int]] = {}
            equal: dict[int, list[Session]] = {}
            ended = [0]
            lock = threading.Lock()

            def drain() -> None:
                for batch in engine.batches(max_events=1):
                    for event in batch:
                        with lock:
                            kept.append(weakref.ref(event.session))
                            hashes.setdefault(event.session.id, set()).add(hash(event.session))
                            equal.setdefault(event.session.id, []).append(event.session)
                            ended[0] += isinstance(event, Disconnected)

            threads = [threading.Thread(target=drain) for _ in range(4)]
            for thread in threads:
                thread.start()
            for _ in range(30):
                for ws in [dial(engine) for _ in range(10)]:
                    ws.send("x")
                    ws.close()
            deadline = time.monotonic() + 20
            while ended[0] < 300 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert ended[0] == 300
            assert all(len(values) == 1 for values in hashes.values())
            assert all(one == some[0] for some in equal.values() for one in some)
            assert len({one for some in equal.values() for one in some}) == 300
            equal.clear()
            # The engine continues; the reported sessions are over.
            limit = time.monotonic() + 5
            left = 300
            # Each thread holds its last batch.
            while left > len(threads) and time.monotonic() < limit:
                gc.collect()
                time.sleep(0.05)
                left = len({id(session) for known in kept if (session := known()) is not None})
            engine.stop()
            for thread in threads:
                thread.join(20)
            assert left <= len(threads)
    finally:
        sys.setswitchinterval(0.005)


def test_garbage_collected_while_events_become_objects() -> None:
    """Collected objects may run any code, also in other threads: no deadlock results."""
    text = textwrap.dedent("""
        import faulthandler, gc, sys, threading, time
        from wirespeed.engine import Engine
        from wirespeed.sync import connect
        faulthandler.dump_traceback_later(20, exit=True)
        sys.setswitchinterval(1e-5)

        class Slow:
            def __init__(self):
                self.me = self
            def __del__(self):
                time.sleep(0.0001)
                engine.stats()

        engine = Engine("127.0.0.1", workers=2)
        engine.start()
        host, port = engine.addresses[0]
        clients = [connect(f"ws://{host}:{port}/", proxy=None) for _ in range(4)]
        done = threading.Semaphore(0)

        def drain():
            for batch in engine.batches(max_events=1):
                Slow()
                for event in batch:
                    done.release()

        gc.set_threshold(1, 1, 1)
        threads = [threading.Thread(target=drain) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(300):
            for ws in clients:
                ws.send("x")
        for _ in range(1204):
            assert done.acquire(timeout=15)
        gc.set_threshold(700, 10, 10)
        for ws in clients:
            ws.close()
        engine.stop()
    """)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=load_scaled(40), check=False
    )
    assert done.returncode == 0, done.stderr


def flood(engine: Engine, over: threading.Event) -> threading.Thread:
    """One client that sends as fast as it can."""

    def run() -> None:
        with dial(engine, close_timeout=1) as ws:
            messages = ["x"] * 500
            while not over.is_set():
                try:
                    ws.send_many(messages)
                except wirespeed.ConnectionClosed:
                    return

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("way", ["iterates", "handlers", "coroutines"])
def test_flood_does_not_starve_other_tasks(way: str) -> None:
    """A task beside it wakes up, again and again."""

    async def main() -> tuple[int, int]:
        engine = Engine("127.0.0.1", workers=1)
        count = 0
        over = threading.Event()

        def handle(session: Session, message: str) -> None:
            nonlocal count
            count += 1

        async def handle_later(session: Session, message: str) -> None:
            handle(session, message)

        engine.on_message(handle_later if way == "coroutines" else handle)

        async def iterate() -> None:
            nonlocal count
            async for batch in engine:
                count += len(batch)

        async with engine:
            serving = asyncio.create_task(iterate() if way == "iterates" else engine.serve())
            thread = await asyncio.to_thread(flood, engine, over)
            ticks = 0
            end = time.monotonic() + 1
            while time.monotonic() < end:
                await asyncio.sleep(0.005)
                ticks += 1
            over.set()
            await asyncio.to_thread(engine.stop)
            await serving
            await asyncio.to_thread(thread.join, 20)
            return ticks, count

    ticks, count = asyncio.run(asyncio.wait_for(main(), 60))
    assert count > 10_000
    # 200 on an idle machine.
    assert ticks > 20


def test_iterating_again_after_a_break() -> None:
    """The rest of the first iteration is closed when the loop runs, and closes no reused descriptor."""

    async def next_batch(engine: Engine) -> None:
        async for _ in engine:
            break

    async def main() -> None:
        async with Engine("127.0.0.1") as engine:
            with dial(engine) as ws:
                for _ in range(5):
                    await next_batch(engine)
                    # The following code does not wait, so the loop has not run.
                    ws.send("x")
                    while not engine.stats()["events_waiting"]:
                        time.sleep(0.001)
                    await next_batch(engine)
                    pairs = [socket.socketpair() for _ in range(3)]
                    loop = asyncio.get_running_loop()
                    heard: list[int] = []
                    for number, (ours, theirs) in enumerate(pairs):
                        loop.add_reader(ours, heard.append, number)
                        theirs.send(b"x")
                    await asyncio.sleep(0.01)
                    for ours, theirs in pairs:
                        assert loop.remove_reader(ours)
                        ours.close()
                        theirs.close()
                    assert set(heard) == {0, 1, 2}
                    ws.send("x")

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.serial
def test_busy_engine_does_not_starve_a_computing_thread() -> None:
    """Fairness: the batch loop is flooded, and a computing thread keeps 40 % of its speed."""

    def work() -> int:
        value = 0
        for number in range(1000):
            value = (value * 31 + number) & 0xFFFF
        return value

    def compute(seconds: float) -> float:
        done, since = 0, time.thread_time()
        began = time.perf_counter()
        end = began + seconds
        while time.perf_counter() < end:
            work()
            done += 1
        # Time of the interpreter, not of the processor: other programs have no effect here.
        assert time.thread_time() > since
        return done / (time.perf_counter() - began)

    best = 0.0
    for _ in range(3):
        over = threading.Event()
        with Engine("127.0.0.1", workers=1) as engine:
            count = 0

            def drain(engine: Engine = engine) -> None:
                nonlocal count
                for batch in engine.batches():
                    for _ in batch:
                        count += 1

            draining = threading.Thread(target=drain)
            alone = compute(0.5)
            draining.start()
            with flooding_process(engine):
                time.sleep(0.2)
                before = count
                beside = compute(1.0)
                taken = count - before
            over.set()
            engine.stop()
            draining.join(20)
        assert taken > 1000
        best = max(best, beside / alone)
        if best >= 0.4:
            return
    pytest.fail(f"it keeps {best:.0%} of its speed")


class flooding_process:  # noqa: N801 - a context manager
    """A client in a process of its own that sends as fast as it can."""

    def __init__(self, engine: Engine) -> None:
        text = f"""
import wirespeed
from wirespeed.sync import connect
with connect({uri(engine)!r}, proxy=None) as ws:
    try:
        while True:
            ws.send_many(["x"] * 500)
    except wirespeed.ConnectionClosed:
        pass
"""
        self.process = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL)

    def __enter__(self) -> None:
        time.sleep(0.3)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
