"""Calls from other threads than the loop's: allowed calls work, refused ones raise an error that names the
alternative.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, new_loop, soon
from support.connecting import Connect
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED, exceptions

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")

if IS_WIRESPEED:
    from wirespeed import State, broadcast


# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 5.0

debugging = pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])


async def elsewhere(function: Callable[[], Any]) -> Any:
    """Calls a function in another thread while the loop turns."""
    return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, function), 2 * PATIENCE)


class Submitter:
    """Makes calls in another thread, and lets the loop await the returned objects."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def submit(self, awaitable: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop)

    def result(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return self.submit(awaitable).result(PATIENCE)


# Submitted to the loop


@debugging
def test_many_sends(server: WebSocketsServer, run: Run, connect: Connect, debug: bool) -> None:
    """Many sends in one turn of the loop keep their order."""
    texts = [str(number) for number in range(300)]

    async def main() -> None:
        async with connect(server.uri) as ws:
            submitter = Submitter()

            def work() -> list[str]:
                held = threading.Event()
                # The loop does not turn before all messages are queued.
                submitter.loop.call_soon_threadsafe(held.wait, PATIENCE)
                sending = [submitter.submit(ws.send(text)) for text in texts]
                held.set()
                assert [future.result(PATIENCE) for future in sending] == [None] * len(texts)
                return [submitter.result(ws.recv()) for _ in texts]

            assert await elsewhere(work) == texts

    run(main, debug=debug)


CALLS: dict[str, tuple[Callable[[Any], Coroutine[Any, Any, Any]], list[Any]]] = {
    "text": (lambda ws: ws.send("a"), ["a"]),
    "bytes": (lambda ws: ws.send(b"a"), [b"a"]),
    "large": (lambda ws: ws.send("a" * 300_000), ["a" * 300_000]),
    "fragments": (lambda ws: ws.send(iter(["a", "b"])), ["ab"]),
    "send_many": (lambda ws: ws.send_many(["a", "b"]), ["a", "b"]),
    "flush": (lambda ws: ws.flush(), []),
    "ping": (lambda ws: ws.ping(), []),
    "pong": (lambda ws: ws.pong(), []),
}


@debugging
@pytest.mark.parametrize("call", CALLS)
def test_submitted_call(server: WebSocketsServer, run: Run, connect: Connect, call: str, debug: bool) -> None:
    make, messages = CALLS[call]

    async def main() -> None:
        async with connect(server.uri) as ws:
            submitter = Submitter()

            def work() -> list[Any]:
                submitter.result(make(ws))
                received = [submitter.result(ws.recv()) for _ in messages]
                submitter.result(ws.send("last"))
                return [*received, *submitter.result(ws.recv_many())]

            assert await elsewhere(work) == [*messages, "last"]

    run(main, debug=debug)


@debugging
def test_foreign_send_does_not_delay_corked_messages(
    server: WebSocketsServer, run: Run, connect: Connect, debug: bool
) -> None:
    """A message from another thread does not delay later messages of the loop's thread."""

    async def main() -> None:
        async with connect(server.uri) as ws, connect(server.uri) as other:
            submitter = Submitter()

            async def two(which: Any) -> list[Any]:
                await which.send("1")
                await which.send("2")
                return [await asyncio.wait_for(which.recv(), PATIENCE) for _ in range(2)]

            def work() -> None:
                submitter.result(ws.send("0"))
                assert submitter.result(ws.recv()) == "0"

            for _ in range(5):
                working = asyncio.ensure_future(elsewhere(work))
                assert await two(other) == ["1", "2"]
                await working
                assert await two(ws) == ["1", "2"]
                assert await two(other) == ["1", "2"]

    run(main, debug=debug)


async def test_close(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        submitter = Submitter()
        await elsewhere(lambda: submitter.result(ws.close(1001, "bye")))
        assert (ws.close_code, ws.close_reason) == (1001, "bye")


# Directly


DIRECT: dict[str, Callable[[Any], Any]] = {
    "send_nowait": lambda ws: ws.send_nowait("x"),
    "recv_nowait": lambda ws: ws.recv_nowait(),
    "broadcast": lambda ws: broadcast([ws], "x"),
}


@debugging
@pytest.mark.parametrize("name", DIRECT)
def test_refused(server: WebSocketsServer, run: Run, connect: Connect, name: str, debug: bool) -> None:
    """The exception names the call to use, and has no other effect."""

    async def main() -> None:
        async with connect(server.uri) as ws:
            await ws.send("1")

            def work() -> None:
                with pytest.raises(RuntimeError, match=rf"^{name}\(\).*another thread.*call_soon_threadsafe"):
                    DIRECT[name](ws)

            await elsewhere(work)
            assert await asyncio.wait_for(ws.recv(), PATIENCE) == "1"
            # The call works in the loop's own thread, and by the way that the exception names.
            ws.send_nowait("2")
            assert await asyncio.wait_for(ws.recv(), PATIENCE) == "2"
            loop = asyncio.get_running_loop()
            await elsewhere(lambda: loop.call_soon_threadsafe(ws.send_nowait, "3"))
            assert await asyncio.wait_for(ws.recv(), PATIENCE) == "3"

    run(main, debug=debug)


@debugging
@pytest.mark.parametrize("waiting", [False, True], ids=["", "waiting"])
def test_abort(server: WebSocketsServer, run: Run, connect: Connect, waiting: bool, debug: bool) -> None:
    """Abort ends the connection and wakes waiting tasks although the loop slept."""

    async def main() -> None:
        async with connect(server.uri) as ws:
            receiving: asyncio.Future[Any] = asyncio.ensure_future(ws.recv())
            if not waiting:
                receiving.cancel()
                await asyncio.wait([receiving])
            await elsewhere(ws.abort)
            await asyncio.wait_for(ws.wait_closed(), PATIENCE)
            assert ws.state is State.CLOSED
            if waiting:
                with pytest.raises(exceptions.ConnectionClosedError):
                    await asyncio.wait_for(receiving, PATIENCE)
            with pytest.raises(exceptions.ConnectionClosedError):
                await ws.send("x")

    run(main, debug=debug)


async def test_abort_during_other_calls(server: WebSocketsServer, connect: Connect) -> None:
    for _ in range(5):
        async with connect(server.uri) as ws:
            aborting = asyncio.ensure_future(elsewhere(ws.abort))
            with pytest.raises(exceptions.ConnectionClosedError):
                while True:
                    await ws.send("x")
                    await ws.recv()
            await aborting
            await asyncio.wait_for(ws.wait_closed(), PATIENCE)


async def test_attributes_are_readable(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        stop = threading.Event()
        states = set()

        def work() -> int:
            count = 0
            while not stop.is_set():
                states.add(ws.state)
                assert ws.stats()["messages_sent"] >= 0
                assert ws.latency >= 0
                assert ws.close_code is None
                count += 1
            return count

        reading = asyncio.ensure_future(elsewhere(work))
        for number in range(300):
            await ws.send(str(number))
            assert await ws.recv() == str(number)
        stop.set()
        assert await reading > 0
        assert states == {State.OPEN}


@pytest.mark.parametrize(
    "call",
    [
        lambda ws: ws.recv(),
        lambda ws: ws.recv_many(),
        lambda ws: ws.send("x"),
        lambda ws: ws.send(["x", "y"]),
        lambda ws: ws.send_many(["x"]),
        lambda ws: ws.flush(),
        lambda ws: ws.ping(),
        lambda ws: ws.pong(),
        lambda ws: ws.close(),
    ],
    ids=["recv", "recv_many", "send", "fragments", "send_many", "flush", "ping", "pong", "close"],
)
async def test_awaited_on_the_loop_of_another_thread(
    server: WebSocketsServer, connect: Connect, call: Callable[[Any], Any]
) -> None:
    """Awaiting is refused before it has an effect, every time."""
    async with connect(server.uri) as ws:
        counted = ws.stats()

        async def there() -> None:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="another thread"):
                    await call(ws)
                for refused in (lambda: ws.send_nowait("x"), ws.recv_nowait):
                    with pytest.raises(RuntimeError, match="another thread"):
                        refused()

        await elsewhere(lambda: asyncio.run(there()))
        assert ws.stats() == counted
        assert await use(ws, "1") == ["1", "1", "all"]


# Another thread runs the loop


def in_thread(function: Callable[[], Any]) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(2 * PATIENCE)


async def use(ws: Any, *texts: str) -> list[Any]:
    for text in texts:
        ws.send_nowait(text)
        await ws.send(text)
    assert broadcast([ws], "all") == 1
    return [await asyncio.wait_for(ws.recv(), PATIENCE) for _ in range(2 * len(texts) + 1)]


@debugging
def test_loop_run_by_another_thread_later(
    server: WebSocketsServer, setting: Setting, connect: Connect, debug: bool
) -> None:
    """A loop is run by one thread, then by another: the connection follows its loop."""
    loop = new_loop(setting.loop)
    loop.set_debug(debug)
    everything = ["1", "1", "2", "2", "all"]

    def turn(awaitable: Awaitable[Any]) -> Any:
        return loop.run_until_complete(awaitable)

    async def opened() -> Any:
        return await connect(server.uri)

    try:
        ws = turn(opened())
        assert turn(use(ws, "1", "2")) == everything
        assert in_thread(lambda: turn(use(ws, "1", "2"))) == everything
        assert in_thread(lambda: turn(use(ws, "1", "2"))) == everything
        assert turn(use(ws, "1", "2")) == everything
        in_thread(lambda: turn(ws.close()))
        assert ws.close_code == 1000
    finally:
        loop.close()


@debugging
def test_abort_by_the_former_thread_of_the_loop(
    server: WebSocketsServer, setting: Setting, connect: Connect, debug: bool
) -> None:
    """The thread that ran the loop before aborts a connection that has only received since."""
    loop = new_loop(setting.loop)
    loop.set_debug(debug)

    async def opened() -> Any:
        return await connect(server.uri, ping_interval=None)

    ws = loop.run_until_complete(opened())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        received = asyncio.run_coroutine_threadsafe(ws.recv(), loop)
        with pytest.raises(concurrent.futures.TimeoutError):
            received.result(0.05)
        with pytest.raises(RuntimeError, match="another thread"):
            ws.send_nowait("x")
        ws.abort()
        with pytest.raises(exceptions.ConnectionClosed):
            received.result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def test_loops_in_two_threads(server: WebSocketsServer, connect: Connect) -> None:
    """Two loops run at once, with a connection each."""
    async with connect(server.uri) as ws:

        async def there() -> None:
            async with connect(server.uri) as other:
                for _ in range(20):
                    assert await use(other, "1") == ["1", "1", "all"]

        def work() -> None:
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(there())
            finally:
                loop.close()

        working = asyncio.ensure_future(elsewhere(work))
        for _ in range(20):
            assert await use(ws, "1") == ["1", "1", "all"]
        await soon(working.done)
        await working
