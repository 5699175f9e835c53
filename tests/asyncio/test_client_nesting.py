"""No step of a task is ever entered from inside another task's step, for any event that wakes it."""

from __future__ import annotations

import asyncio
import collections.abc
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, spin
from support.connecting import Connect
from support.frames import close, ping, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


class Watched(collections.abc.Coroutine[Any, Any, Any]):
    """A coroutine that notices when it is entered while another one of the loop is running."""

    depth = 0
    steps = 0
    nested: list[str] = []  # noqa: RUF012 - one for all

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def _step(self, step: Callable[..., Any], *args: Any) -> Any:
        if Watched.depth:
            Watched.nested.append(repr(self.inner))
        Watched.depth += 1
        Watched.steps += 1
        try:
            return step(*args)
        finally:
            Watched.depth -= 1

    def send(self, value: Any) -> Any:
        return self._step(self.inner.send, value)

    def throw(self, *exc: Any) -> Any:
        return self._step(self.inner.throw, *exc)

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Any:
        return self.inner.__await__()


def watch(loop: asyncio.AbstractEventLoop) -> None:
    Watched.depth = Watched.steps = 0
    Watched.nested.clear()
    loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(Watched(coro), loop=loop, **options))


@pytest.fixture
def run_watched(run: Run) -> Run:
    """Runs with every step of every task watched."""

    def run_and_check(main: Callable[[], Any], **options: Any) -> None:
        run(main, prepare=watch, **options)
        assert Watched.nested == []
        # Proves that steps were watched: connecting and an answer take three steps at least.
        assert Watched.steps >= 3

    return run_and_check


def test_steps_are_watched(run: Run) -> None:
    """Guards the tests below."""

    async def main() -> None:
        inner = Watched(asyncio.sleep(0))
        with pytest.raises(StopIteration):
            while True:
                inner.send(None)

    run(main, prepare=watch)
    assert len(Watched.nested) == 2


def test_never_nested_while_receiving(server: WebSocketsServer, run_watched: Run, connect: Connect) -> None:
    async def receive(ws: Any) -> None:
        for number in range(50):
            await ws.send(str(number))
            assert await ws.recv() == str(number)

    async def main() -> None:
        connections = [await connect(server.uri) for _ in range(5)]
        await asyncio.gather(*map(receive, connections))
        await asyncio.gather(*(ws.close() for ws in connections))

    run_watched(main)


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("call", ["recv_nowait", "abort", "send_nowait", "recv", "begin-close"])
def test_never_nested_by_a_call(scripted: Scripted, run_watched: Run, connect: Connect, call: str) -> None:
    """Events found by a call, inside the step of its task, wake the other tasks only later."""

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.read_frame()
        wire.send(b"".join(text(str(number)) for number in range(5)) + ping() + close(4000))
        server.reached.set()
        return wire.read_to_end()

    server = scripted(script)

    async def swallow(awaitable: Any) -> Any:
        try:
            return await awaitable
        except exceptions.ConnectionClosed:
            return None

    async def main() -> None:
        ws = await connect(server.uri, close_timeout=0.5)
        others = [asyncio.ensure_future(swallow(ws.recv())) for _ in range(10)]
        others += [asyncio.ensure_future(swallow(ws.wait_closed())) for _ in range(2)]
        await spin()
        await ws.send("go")
        server.wait_reached()  # everything is in the socket, and the loop has not turned
        before = Watched.steps
        if call == "recv_nowait":
            with pytest.raises((BlockingIOError, exceptions.ConnectionClosed)):
                ws.recv_nowait()
        elif call == "abort":
            ws.abort()
        elif call == "send_nowait":
            with pytest.raises((BlockingIOError, exceptions.ConnectionClosed)):
                while True:
                    ws.send_nowait(bytes(100_000))
        elif call == "begin-close":
            closing = ws.close()
            closing.send(None)
            closing.close()
        assert Watched.steps == before
        if call == "recv":
            await swallow(ws.recv())
        await asyncio.gather(*others)
        await ws.close()

    run_watched(main)


def test_never_nested_by_cancelling(server: WebSocketsServer, run_watched: Run, connect: Connect) -> None:
    async def main() -> None:
        async with connect(server.uri) as ws:
            for _ in range(20):
                task = asyncio.ensure_future(ws.recv())
                await spin()
                before = Watched.steps
                task.cancel()
                assert Watched.steps == before
                await asyncio.wait([task])
                await ws.send("x")
                assert await ws.recv() == "x"

    run_watched(main)


@pytest.mark.parametrize("seed", range(3))
def test_never_nested_at_random(
    server: WebSocketsServer, run_watched: Run, connect: Connect, setting: Setting, seed: int
) -> None:
    """Tasks that wait for each other use connections that send, ping, close and are cancelled."""
    choose = random.Random(f"{seed} {setting}")

    async def talk(ws: Any, others: list[Any]) -> None:
        for number in range(30):
            await ws.send(str(number))
            if choose.random() < 0.3:
                await (await choose.choice(others).ping())
            if choose.random() < 0.2:
                await asyncio.sleep(0)
            await asyncio.wait_for(ws.recv(), 5)
        await ws.close()

    async def main() -> None:
        connections = [await connect(server.uri) for _ in range(6)]
        tasks = [asyncio.ensure_future(talk(ws, connections)) for ws in connections]
        for _ in range(50):
            await asyncio.sleep(0)
            if choose.random() < 0.1:
                choose.choice(tasks).cancel()
        await asyncio.wait(tasks)
        await asyncio.gather(*(ws.close() for ws in connections))
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), exceptions.ConnectionClosed)

    run_watched(main)


@pytest.mark.wirespeed_only("ours")
@pytest.mark.parametrize("what", ["message", "pong", "close"])
def test_a_callback_does_not_enter_a_task(scripted: Scripted, run_watched: Run, connect: Connect, what: str) -> None:
    """A listener may resolve futures, put into queues and cancel: the tasks run after it."""
    import wirespeed

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.read_frame()
        wire.send(text("x") + b"\x8a\x00" + close(1000))
        return wire.read_until_close()

    server = scripted(script)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        victim = asyncio.ensure_future(asyncio.sleep(60))

        def act() -> None:
            assert Watched.depth == 0
            before = Watched.steps
            if not future.done():
                future.set_result(1)
            victim.cancel()
            assert Watched.steps == before

        class Acting(wirespeed.Listener):
            def on_message(self, ws: Any, message: Any) -> None:
                if what == "message":
                    act()

            def on_pong(self, ws: Any, data: bytes) -> None:
                if what == "pong":
                    act()

            def on_close(self, ws: Any, code: int, reason: str) -> None:
                if what == "close":
                    act()

        ws = await connect(server.uri, listener=Acting())
        await ws.send("go")
        assert await future == 1
        await asyncio.wait([victim])
        assert victim.cancelled()
        await ws.wait_closed()

    run_watched(main)
