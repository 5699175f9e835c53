"""A waiting task is woken as by asyncio itself: in its context, as the current task, for every kind of task."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import sys
import threading
from typing import Any

import pytest

from support.asyncio_tools import Run, cancelled, eager, spin
from support.connecting import Connect
from support.frames import close, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

since_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="new in Python 3.11")
since_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


# Context and current task


async def test_context_after_a_wake(server: WebSocketsServer, connect: Connect) -> None:
    """Each task finds its own context variables, and none of other tasks."""

    async def talk(name: str) -> None:
        variable.set(name)
        async with connect(server.uri) as ws:
            for number in range(20):
                await ws.send(f"{name} {number}")
                assert await ws.recv() == f"{name} {number}"
                assert variable.get() == name
                variable.set(name)

    await asyncio.gather(*(talk(f"task {number}") for number in range(5)))
    assert variable.get() == "nobody's"


@since_311
async def test_context_given_to_a_task(server: WebSocketsServer, connect: Connect) -> None:
    """Also when the task runs ``ws.recv()`` itself."""
    async with connect(server.uri) as ws:
        context = contextvars.copy_context()
        context.run(variable.set, "given")
        seen: list[str] = []
        task = asyncio.get_running_loop().create_task(ws.recv(), context=context)  # type: ignore[call-arg]
        task.add_done_callback(lambda _: seen.append(variable.get()), context=context)
        await spin()
        await ws.send("x")
        assert await task == "x"
        await spin()
        assert seen == ["given"]
        assert variable.get() == "nobody's"


async def test_current_task_after_a_wake(server: WebSocketsServer, connect: Connect) -> None:
    async def talk() -> None:
        task = asyncio.current_task()
        async with connect(server.uri) as ws:
            for _ in range(20):
                await ws.send("x")
                await ws.recv()
                assert asyncio.current_task() is task
                await (await ws.ping())
                assert asyncio.current_task() is task
        assert asyncio.current_task() is task

    await asyncio.gather(*(talk() for _ in range(5)))


async def test_running_loop_after_a_wake(server: WebSocketsServer, connect: Connect) -> None:
    loop = asyncio.get_running_loop()
    async with connect(server.uri) as ws:
        for _ in range(5):
            await ws.send("x")
            await ws.recv()
            assert asyncio.get_running_loop() is loop
            # The loop is usable from here as from everywhere.
            await asyncio.wait_for(loop.run_in_executor(None, int), 5)


async def test_done_callbacks_of_a_task_that_receives(server: WebSocketsServer, connect: Connect) -> None:
    """Done callbacks run later, not inside the wake."""
    async with connect(server.uri) as ws:
        order: list[str] = []

        async def receive() -> None:
            await ws.recv()
            order.append("received")

        task = asyncio.ensure_future(receive())
        task.add_done_callback(lambda _: order.append("callback"))
        await spin()
        await ws.send("x")
        await task
        await spin()
        assert order == ["received", "callback"]


# The functions to wait with


async def test_gather(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as one, connect(server.uri) as two:
        await asyncio.gather(one.send("1"), two.send("2"))
        assert list(await asyncio.gather(one.recv(), two.recv())) == ["1", "2"]


async def test_wait(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as one, connect(server.uri) as two:
        tasks = [asyncio.ensure_future(ws.recv()) for ws in (one, two)]
        await two.send("2")
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == ["2"]
        await one.send("1")
        done, pending = await asyncio.wait(pending)
        assert [task.result() for task in done] == ["1"]
        assert pending == set()


async def test_as_completed(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as one, connect(server.uri) as two:
        waiting = asyncio.as_completed([one.recv(), two.recv()])
        await two.send("2")
        assert await next(waiting) == "2"
        await one.send("1")
        assert await next(waiting) == "1"


async def test_shield(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        receiving = asyncio.ensure_future(ws.recv())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(receiving), 0.02)
        await ws.send("x")
        assert await asyncio.shield(receiving) == "x"


async def test_wait_for_in_time(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for number in range(20):
            await ws.send(str(number))
            assert await asyncio.wait_for(ws.recv(), 5) == str(number)


@since_311
async def test_task_group(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as one, connect(server.uri) as two:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
            receiving = [group.create_task(ws.recv()) for ws in (one, two)]
            group.create_task(one.send("1"))
            group.create_task(two.send("2"))
        assert [task.result() for task in receiving] == ["1", "2"]


@since_311
async def test_timeout_in_time(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for _ in range(20):
            async with asyncio.timeout(5):  # type: ignore[attr-defined]
                await ws.send("x")
                assert await ws.recv() == "x"


async def test_run_coroutine_threadsafe(server: WebSocketsServer, connect: Connect) -> None:
    """The way in which other threads use a connection."""
    loop = asyncio.get_running_loop()

    def talk(ws: Any) -> Any:
        asyncio.run_coroutine_threadsafe(ws.send("from a thread"), loop).result(5)
        return asyncio.run_coroutine_threadsafe(ws.recv(), loop).result(5)

    async with connect(server.uri) as ws:
        assert await loop.run_in_executor(None, talk, ws) == "from a thread"


async def test_receive_in_a_task_that_was_woken_by_another(server: WebSocketsServer, connect: Connect) -> None:
    """Tasks in a ring forward messages by asyncio's own means."""
    async with connect(server.uri) as ws:
        queue: asyncio.Queue[Any] = asyncio.Queue(1)
        event = asyncio.Event()

        async def receive() -> None:
            async for message in ws:
                await queue.put(message)
                event.set()

        async def answer() -> None:
            for _ in range(50):
                number = int(await queue.get())
                await ws.send(str(number + 1))

        receiving = asyncio.ensure_future(receive())
        await ws.send("0")
        await answer()
        await event.wait()
        assert await queue.get() == "50"
        assert await cancelled(receiving)


# Other kinds of tasks


async def talk(connect: Connect, uri: str, *, timeouts: bool = True) -> None:
    """Uses every operation that a task can wait for, through the loop's own way of making tasks."""
    async with connect(uri) as ws:
        loop = asyncio.get_running_loop()
        receiving = loop.create_task(ws.recv())
        await spin()
        await loop.create_task(ws.send("1"))
        assert await receiving == "1"
        await (await ws.ping())
        await ws.send(["2", "3"])
        assert await (asyncio.wait_for(ws.recv(), 5) if timeouts else ws.recv()) == "23"
        assert list(await asyncio.gather(ws.recv(), ws.send("4"))) == ["4", None]
        waiting = loop.create_task(ws.recv())
        await spin()
        assert await cancelled(waiting)
        ending = loop.create_task(ws.recv())
        await spin()
    with pytest.raises(exceptions.ConnectionClosedOK):
        await ending


def test_plain_tasks(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    run(lambda: talk(connect, server.uri))


def test_debug_mode(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    run(lambda: talk(connect, server.uri), debug=True)


@pytest.mark.skipif(not hasattr(asyncio.tasks, "_PyTask"), reason="this interpreter has no tasks in Python")
def test_tasks_written_in_python(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    """Tasks need not be those of the C module."""

    tasks: Any = asyncio.tasks

    def prepare(loop: asyncio.AbstractEventLoop) -> None:
        loop.set_task_factory(lambda loop, coro, **options: tasks._PyTask(coro, loop=loop, **options))

    # From 3.14 on, timeouts of asyncio itself do not know such tasks.
    run(lambda: talk(connect, server.uri, timeouts=sys.version_info < (3, 14)), prepare=prepare)


@since_312
def test_eager_tasks(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    """Eager tasks begin inside the task that makes them, and many end there."""

    run(lambda: talk(connect, server.uri), prepare=lambda loop: loop.set_task_factory(eager))


@since_312
async def test_eager_task_that_is_done_at_once(server: WebSocketsServer, connect: Connect) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(eager)
    async with connect(server.uri + "/count?n=3") as ws:
        assert await ws.recv() == "0"
        await asyncio.sleep(0.05)  # the other messages have arrived by now
        me = asyncio.current_task()
        for expected in "12":
            task = loop.create_task(ws.recv())
            assert asyncio.current_task() is me
            assert await task == expected


@since_312
async def test_eager_task_that_waits(server: WebSocketsServer, connect: Connect) -> None:
    """The first step runs in the given context; so do the steps after a wake."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(eager)
    seen: list[Any] = []

    async def receive(ws: Any) -> None:
        for _ in range(3):
            seen.append((await ws.recv(), variable.get(), asyncio.current_task()))

    async with connect(server.uri) as ws:
        context = contextvars.copy_context()
        context.run(variable.set, "eager")
        task = loop.create_task(receive(ws), context=context)  # type: ignore[call-arg]
        for number in range(3):
            await ws.send(str(number))
            await asyncio.sleep(0.01)
        await task
        assert seen == [(str(number), "eager", task) for number in range(3)]
        assert variable.get() == "nobody's"


# Several receivers, several loops


@pytest.mark.wirespeed_only("websockets raises ConcurrencyError")
async def test_first_come_first_served(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(b"".join(text(str(number)) for number in range(10)))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        order: list[tuple[int, str]] = []

        async def receive(number: int) -> None:
            order.append((number, await ws.recv()))

        tasks = [asyncio.ensure_future(receive(number)) for number in range(10)]
        await spin()
        server.release.set()
        await asyncio.gather(*tasks)
        assert order == [(number, str(number)) for number in range(10)]


@pytest.mark.wirespeed_only("websockets raises ConcurrencyError")
async def test_receivers_share(scripted: Scripted, connect: Connect) -> None:
    """Each message goes to exactly one receiver, and no receiver is left out."""
    count = 500

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        for number in range(count):
            wire.send(text(str(number)))
        wire.send(close(1000))
        wire.read_until_close()

    server = scripted(script)
    received: list[list[str]] = [[], [], []]

    async def receive(mine: list[str]) -> None:
        async for message in ws:
            mine.append(message)
            await asyncio.sleep(0)

    async with connect(server.uri) as ws:
        tasks = [asyncio.ensure_future(receive(mine)) for mine in received]
        await spin()
        await ws.send("go")
        await asyncio.gather(*tasks)
    assert sorted(itertools.chain(*received), key=int) == [str(number) for number in range(count)]
    for mine in received:
        assert mine == sorted(mine, key=int)
        assert len(mine) > 10


@pytest.mark.wirespeed_only("websockets raises ConcurrencyError")
async def test_receivers_of_all_kinds(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.send(b"".join(text(str(number)) for number in range(10)))
        wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        calls = [ws.recv(), ws.recv_many(3), ws.recv(decode=False), ws.recv_many(3)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await spin()
        server.release.set()
        one, many, raw, more = await asyncio.gather(*tasks)
        received = [one, *many, raw.decode(), *more]
        while len(received) < 10:
            received += await ws.recv_many()
        assert received == [str(number) for number in range(10)]


async def test_many_senders(server: WebSocketsServer, connect: Connect) -> None:
    """Every message arrives whole and once, and those of one task in their order."""
    senders, each = 20, 100
    async with connect(server.uri, compression=None) as ws:

        async def send(sender: int) -> None:
            for number in range(each):
                await ws.send(f"{sender}:{number}:" + "x" * (number % 7 * 3000))
                if number % 3 == sender % 3:
                    await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(send(sender)) for sender in range(senders)]
        received = [await ws.recv() for _ in range(senders * each)]
        await asyncio.gather(*tasks)
    for sender in range(senders):
        numbers = [int(message.split(":")[1]) for message in received if message.startswith(f"{sender}:")]
        assert numbers == list(range(each))
    assert all(message.count("x") == int(message.split(":")[1]) % 7 * 3000 for message in received)


def test_loops_in_threads(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    """Connections of different loops in different threads have nothing in common."""
    errors: list[BaseException] = []

    async def main() -> None:
        connections = [await connect(server.uri) for _ in range(3)]

        async def talk(ws: Any) -> None:
            for number in range(100):
                await ws.send(f"{threading.get_ident()} {number}")
                assert await ws.recv() == f"{threading.get_ident()} {number}"

        await asyncio.gather(*map(talk, connections))
        await asyncio.gather(*(ws.close() for ws in connections))

    def in_thread() -> None:
        try:
            run(main)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=in_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_one_loop_after_the_other(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    """State that a loop's connections share is freed with the loop."""
    for _ in range(5):
        run(functools.partial(talk, connect, server.uri))
