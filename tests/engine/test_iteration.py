"""Distribution of an engine's events among several iterators: tasks on one or several event loops, and threads."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

import wirespeed
from engine.tools import dial, take, uri
from wirespeed.engine import Batch, BrokerEvent, Connected, Disconnected, Engine, Event, Message, Session
from wirespeed.sync import ClientConnection

pytestmark = pytest.mark.wirespeed_only("websockets has no engine")

BOUND = 30
"""Seconds after which something has been forgotten."""


async def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.001)


def until_in_thread(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.001)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


async def test_waiting_iterator_gets_events_while_another_is_busy() -> None:
    """A waiting iterator gets the event, in any order of calls."""
    async with Engine("127.0.0.1", workers=1) as engine:
        busy: list[asyncio.Task[None] | None] = []
        go_on = asyncio.Event()

        async def consume() -> None:
            async for batch in engine:
                if any(isinstance(event, Connected) for event in batch):
                    busy.append(asyncio.current_task())
                    await go_on.wait()

        tasks = [asyncio.create_task(consume()) for _ in range(3)]
        async with contextlib.AsyncExitStack() as stack:
            for count in 1, 2, 3:
                await stack.enter_async_context(wirespeed.connect(uri(engine), proxy=None))
                await until(lambda count=count: len(busy) == count, f"{len(busy)} of {count} were told")  # type: ignore[misc]
            assert set(busy) == set(tasks)
        go_on.set()
        engine.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), BOUND)


async def test_one_event_wakes_one_iterator() -> None:
    """Not all waiting iterators are woken."""
    looks: list[int] = []

    class Counting(Engine):
        def _take(self, max_events: int, timeout: float | None) -> Batch | None:
            looks.append(max_events)
            return super()._take(max_events, timeout)

    async with Counting("127.0.0.1", workers=1) as engine:
        got: list[Event] = []

        async def consume() -> None:
            async for batch in engine:
                got.extend(batch)

        tasks = [asyncio.create_task(consume()) for _ in range(50)]
        await until(lambda: len(looks) == 50, "all look once")
        for _ in range(3):
            await asyncio.sleep(0)  # and wait then
        async with wirespeed.connect(uri(engine), proxy=None):
            await until(lambda: len(got) == 1, "nobody was told")
            # The woken one checks again afterwards; waking all of them would be 50.
            assert len(looks) < 60
        engine.stop()
        await asyncio.wait_for(asyncio.gather(*tasks), BOUND)
        assert len(got) == 2


async def test_cancelled_iterator_passes_its_wakeup_on() -> None:
    async with Engine("127.0.0.1", workers=1) as engine:
        got: list[Event] = []

        async def consume() -> None:
            async for batch in engine:
                got.extend(batch)

        with dial(engine) as client:
            first, second = asyncio.create_task(consume()), asyncio.create_task(consume())
            await until(lambda: len(got) == 1, "nobody was told of the client")
            for number in range(20):
                client.send(str(number))
                # The loop has no turn: one task is notified, and one is cancelled before it runs.
                until_in_thread(lambda: engine.stats()["events_waiting"] > 0, "it has not come")
                first.cancel()
                first, second = second, asyncio.create_task(consume())
                await until(lambda number=number: len(got) == number + 2, f"{number} was lost")  # type: ignore[misc]
        engine.stop()
        await asyncio.wait_for(asyncio.gather(first, second), BOUND)
        assert [event.data for event in got if isinstance(event, Message)] == [str(number) for number in range(20)]


async def test_cancelled_iterator_is_not_notified() -> None:
    """The task's exception keeps all its objects alive."""
    async with Engine("127.0.0.1", workers=1) as engine:
        got: list[Event] = []
        looks = 0

        async def consume() -> None:
            nonlocal looks
            looks += 1
            async for batch in engine:
                got.extend(batch)

        tasks = [asyncio.create_task(consume()) for _ in range(3)]
        await until(lambda: looks == 3, "they begin")
        for _ in range(3):
            await asyncio.sleep(0)  # and wait then
        before = descriptors()
        kept = []
        for task in tasks[:2]:
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as raised:
                await task
            kept.append(raised.value)
        with dial(engine):
            await until(lambda: len(got) == 1, "one was told that is over")
        await until(lambda: descriptors() <= before - 4, "they have kept their descriptors")
        engine.stop()
        await asyncio.wait_for(tasks[2], BOUND)
        assert len(kept) == 2


@pytest.mark.parametrize("seed", range(4))
async def test_cancelled_wait_for_room(seed: int) -> None:
    """It leaves nothing open, even if its exception is kept; and all others are notified."""
    choose = random.Random(seed)
    kept: list[BaseException] = []
    async with Engine("127.0.0.1", workers=1, outbox_limit=2**24, ping_interval=None) as engine:
        with dial(engine, compression=None) as client:
            opened = descriptors()
            session = take(engine, 1)[0].session
            while session.has_room:
                session.send(bytes(2**16))
                await asyncio.sleep(0)
            waiting: list[asyncio.Task[object]] = []

            async def wait() -> None:
                await session.send(b"last")

            for _ in range(100):
                if waiting and choose.randrange(2):
                    task = waiting.pop(choose.randrange(len(waiting)))
                    task.cancel()
                    try:
                        await task
                    except asyncio.CancelledError as error:
                        kept.append(error)
                else:
                    waiting.append(asyncio.create_task(wait()))
                    if choose.randrange(2):
                        await asyncio.sleep(0)
                if not waiting:
                    assert descriptors() <= opened
            reading = threading.Thread(target=collections.deque, args=(client, 0), daemon=True)
            reading.start()
            await asyncio.wait_for(asyncio.gather(*waiting), BOUND)
            session.close()
            await asyncio.get_running_loop().run_in_executor(None, reading.join, BOUND)
    assert kept


async def test_all_iterators_end_with_the_engine() -> None:
    """Waiting and busy ones, on two loops and in threads."""
    engine = Engine("127.0.0.1", workers=1)
    engine.start()
    ended: list[str] = []

    async def consume() -> None:
        async for _ in engine:
            pass
        ended.append("task")

    async def consume_three() -> None:
        await asyncio.gather(*[consume() for _ in range(3)])

    def iterate() -> None:
        for _ in engine.batches():
            pass
        ended.append("thread")

    threads = [threading.Thread(target=iterate, daemon=True) for _ in range(2)]
    threads.append(threading.Thread(target=asyncio.run, args=(consume_three(),), daemon=True))
    for thread in threads:
        thread.start()
    here = asyncio.create_task(consume_three())
    await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(None, engine.stop)
    await asyncio.wait_for(here, BOUND)
    for thread in threads:
        thread.join(BOUND)
    assert sorted(ended) == ["task"] * 6 + ["thread"] * 2


class Consumers:
    """Tasks on loops in threads of their own, and threads; each records its events in order."""

    def __init__(self, engine: Engine, loops: int) -> None:
        self.engine = engine
        self.got: list[list[tuple[Session, str]]] = []
        self.loops = [asyncio.new_event_loop() for _ in range(loops)]
        self.turning = [threading.Thread(target=loop.run_forever, daemon=True) for loop in self.loops]
        self.tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
        # Exceptions of cancelled tasks, which keep all their objects alive.
        self.kept: list[asyncio.Task[None]] = []
        self.threads: list[threading.Thread] = []
        self.pauses = random.Random(0)
        for thread in self.turning:
            thread.start()

    def record(self, record: list[tuple[Session, str]], batch: Batch) -> None:
        for event in batch:
            record.append((event.session, event.data if isinstance(event, Message) else type(event).__name__))

    @property
    def count(self) -> int:
        return sum(map(len, self.got))

    async def consume(self, pause: float) -> None:
        record: list[tuple[Session, str]] = []
        self.got.append(record)
        async for batch in self.engine:
            self.record(record, batch)
            await asyncio.sleep(pause)

    def iterate(self, batches: int) -> None:
        record: list[tuple[Session, str]] = []
        self.got.append(record)
        for batch in self.engine.batches(max_events=3):
            self.record(record, batch)
            batches -= 1
            if batches == 0:
                return

    async def begin(self, pause: float) -> asyncio.Task[None]:
        return asyncio.create_task(self.consume(pause))

    def add_task(self, index: int, pause: float) -> None:
        loop = self.loops[index % len(self.loops)]
        self.tasks.append((loop, asyncio.run_coroutine_threadsafe(self.begin(pause), loop).result(BOUND)))

    def add_thread(self, batches: int) -> None:
        self.threads.append(threading.Thread(target=self.iterate, args=(batches,), daemon=True))
        self.threads[-1].start()

    def cancel(self, index: int) -> None:
        loop, task = self.tasks.pop(index)
        self.kept.append(task)
        loop.call_soon_threadsafe(task.cancel)

    def end(self) -> None:
        """Checks that all end by themselves, because the engine has ended."""

        async def rest(tasks: list[asyncio.Task[None]]) -> None:
            await asyncio.wait_for(asyncio.gather(*tasks), BOUND)
            await asyncio.get_running_loop().shutdown_asyncgens()

        for loop in self.loops:
            mine = [task for other, task in self.tasks if other is loop]
            asyncio.run_coroutine_threadsafe(rest(mine), loop).result(BOUND + 5)
        for thread in self.threads:
            thread.join(BOUND)
            assert not thread.is_alive(), "a thread was left waiting"
        for loop, thread in zip(self.loops, self.turning, strict=True):
            loop.call_soon_threadsafe(loop.stop)
            thread.join(BOUND)
            loop.close()


@pytest.mark.parametrize("seed", range(12))
def test_each_event_goes_to_one_of_changing_iterators(seed: int) -> None:
    choose = random.Random(seed)
    # Threads poll now and then, and would find events that were lost with cancelled tasks.
    with_threads = seed % 3 == 2
    engine = Engine("127.0.0.1", workers=2)
    engine.start()
    consumers = Consumers(engine, loops=1 + seed % 2)
    before = descriptors()
    clients: list[tuple[ClientConnection, str]] = []
    sent: dict[str, list[str]] = {}
    events = 0
    consumers.add_task(0, 0)
    for step in range(400):
        match choose.randrange(8):
            case 0 if len(clients) < 8:
                name = str(step)
                clients.append((dial(engine, f"/{name}"), name))
                sent[name] = ["Connected"]
                events += 1
            case 1 if len(clients) > 4:
                client, name = clients.pop(choose.randrange(len(clients)))
                client.close()
                sent[name].append("Disconnected")
                events += 1
            case 2:
                consumers.add_task(choose.randrange(2), choose.choice((0, 0, 0.003)))
            case 3 if len(consumers.tasks) > 1:
                consumers.cancel(choose.randrange(len(consumers.tasks)))
                if choose.randrange(2):
                    consumers.kept.clear()
            case 4 if with_threads and len(consumers.threads) < 10:
                consumers.add_thread(choose.randrange(1, 9))
            case 5:
                until_in_thread(lambda count=events: consumers.count == count, "events wait, and nobody was told")  # type: ignore[misc]
            case _ if clients:
                for _ in range(choose.choice((1, 1, 2, 40))):
                    client, name = choose.choice(clients)
                    client.send(f"{step}.{events}")
                    sent[name].append(f"{step}.{events}")
                    events += 1
            case _:
                pass
    for client, name in clients:
        client.close()
        sent[name].append("Disconnected")
        events += 1
    until_in_thread(lambda: consumers.count == events, "events wait, and nobody was told")
    while len(consumers.tasks) > 1:
        consumers.cancel(0)
    # The last one has two.
    until_in_thread(lambda: descriptors() <= before + 2, "those that are over have left descriptors open")
    engine.stop()
    consumers.end()
    assert all(task.cancelled() for task in consumers.kept)
    got: dict[str, list[str]] = {name: [] for name in sent}
    for record in consumers.got:
        of_one: dict[str, list[str]] = {}
        for session, what in record:
            of_one.setdefault(session.path[1:], []).append(what)
        for name, some in of_one.items():
            # In the order of arrival, with any distribution in between.
            places = iter(sent[name])
            assert all(one in places for one in some), (name, some)
            got[name] += some
    assert {name: sorted(all_of) for name, all_of in got.items()} == {
        name: sorted(all_of) for name, all_of in sent.items()
    }


async def test_cancelled_iterator_loses_no_event() -> None:
    """Cancelled at any wait, also while a broker event is delivered."""
    got: list[Event] = []
    told: list[BrokerEvent] = []
    engine = Engine("127.0.0.1", workers=1, broker="memory://cancelled")
    held = asyncio.Event()
    go_on = asyncio.Event()

    @engine.on_broker
    async def note(event: BrokerEvent) -> None:
        told.append(event)
        held.set()
        await go_on.wait()

    async with engine:

        async def consume() -> None:
            async for batch in engine:
                got.extend(batch)

        async with wirespeed.connect(uri(engine), proxy=None) as client:
            await client.send("first")
            await until(lambda: engine.stats()["events_waiting"] == 2, "it has not come")
            task = asyncio.create_task(consume())
            await asyncio.wait_for(held.wait(), BOUND)
            task.cancel()
            await asyncio.wait([task], timeout=BOUND)
            assert task.cancelled()
            go_on.set()
            task = asyncio.create_task(consume())
            await until(lambda: len(got) == 2, f"{got}")
            task.cancel()
            await asyncio.wait([task], timeout=BOUND)
        async for batch in engine:
            got.extend(batch)
            break
    assert [type(event) for event in got] == [Connected, Message, Disconnected]
    assert told


@contextlib.asynccontextmanager
async def iterating(engine: Engine) -> AsyncIterator[list[Event]]:
    got: list[Event] = []

    async def consume() -> None:
        async for batch in engine:
            got.extend(batch)

    task = asyncio.create_task(consume())
    try:
        yield got
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=BOUND)


async def test_blocked_loop_does_not_block_others() -> None:
    """It is notified first, and never runs."""
    async with Engine("127.0.0.1", workers=1) as engine:
        still = asyncio.new_event_loop()

        async def consume() -> None:
            async for _ in engine:
                pytest.fail("the loop stands still")

        async def begin() -> asyncio.Task[None]:
            task = asyncio.create_task(consume())
            await asyncio.sleep(0)
            return task

        task = await asyncio.get_running_loop().run_in_executor(None, still.run_until_complete, begin())
        async with iterating(engine) as got:
            await asyncio.sleep(0)
            async with wirespeed.connect(uri(engine), proxy=None) as client:
                # The first event may be left to the notified one; later events go to another one.
                await client.send("x")
                await until(lambda: len(got) > 0, "nobody else was told")

        def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                still.run_until_complete(task)
            still.close()

        await asyncio.get_running_loop().run_in_executor(None, end)
