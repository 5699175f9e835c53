"""Connections that the selector serves by itself: the loop stays a loop of the standard library.

While only connections are ready, ``select`` does not return. Any other event must end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import wirespeed
from support.checks import no_leaks, within
from support.native import NativeEcho
from wirespeed.asyncio.loop import EventLoop, Selector, run

pytestmark = [
    pytest.mark.wirespeed_only("the loop is ours"),
    pytest.mark.skipif(Selector.native_class is None, reason="this system has no epoll"),
]


async def exchange(ws: Any) -> None:
    await ws.send("x")
    assert await ws.recv() == "x"


async def exchange_for_ever(uri: str) -> None:
    """Exchanges messages without any timer or callback of the Python loop."""
    ws = await wirespeed.connect(uri, ping_interval=None)
    try:
        while True:
            await exchange(ws)
    finally:
        ws.abort()


@contextlib.asynccontextmanager
async def traffic(uri: str, connections: int = 3) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(exchange_for_ever(uri)) for _ in range(connections)]
    await asyncio.sleep(0.05)
    yield
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.wait(tasks)


@contextlib.contextmanager
def later(work: Callable[[], Any], after: float = 0.1) -> Iterator[None]:
    timer = threading.Timer(after, work)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_the_selector_serves(native_echo: NativeEcho) -> None:
    """Guards the tests below: round trips take no turns of the loop."""

    class Counting(Selector):
        turns = 0

        def select(self, timeout: float | None = None) -> Any:
            self.turns += 1
            return super().select(timeout)

    async def main() -> None:
        async with wirespeed.connect(native_echo.uri, ping_interval=None) as ws:
            await exchange(ws)
            before = selector.turns
            for _ in range(1000):
                await exchange(ws)
            assert selector.turns - before < 100

    selector = Counting()
    with contextlib.closing(EventLoop(selector)) as loop:
        loop.run_until_complete(main())


@pytest.mark.serial
def test_timers_fire(native_echo: NativeEcho) -> None:
    async def main() -> list[float]:
        late = []
        async with traffic(native_echo.uri):
            for _ in range(30):
                due = time.monotonic() + 0.03
                await asyncio.sleep(0.03)
                late.append(time.monotonic() - due)
        return late

    late = run(main())
    # A millisecond is the resolution of the clock; the rest is for a loaded machine.
    assert sorted(late)[len(late) // 2] < 0.03


def test_timers_fire_after_many_were_cancelled(native_echo: NativeEcho) -> None:
    """The loop has replaced its list of timers then, and a task that the selector woke adds to the new one."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = loop._scheduled  # type: ignore[attr-defined]
        ws = await wirespeed.connect(native_echo.uri, ping_interval=None)
        for timer in [loop.call_later(30, list) for _ in range(300)]:
            timer.cancel()
        await asyncio.sleep(0.01)
        assert loop._scheduled is not first  # type: ignore[attr-defined]
        async with traffic(native_echo.uri):
            for _ in range(3):
                await exchange(ws)
                with within(1, at_least=0.05):
                    await asyncio.sleep(0.05)
        await ws.close()

    run(main())


def test_timer_of_a_task_that_the_selector_woke(native_echo: NativeEcho) -> None:
    """The timer may be the only one, while ``select`` was called without a timeout."""

    async def main() -> None:
        async with wirespeed.connect(native_echo.uri, ping_interval=None) as ws:
            for _ in range(5):
                await exchange(ws)
                with within(1, at_least=0.02):
                    await asyncio.sleep(0.02)

    run(main())


def test_calls_from_other_threads(native_echo: NativeEcho) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            for _ in range(100):
                called = threading.Event()
                loop.call_soon_threadsafe(called.set)
                assert called.wait(5)

        async with traffic(native_echo.uri):
            await asyncio.to_thread(call)

    run(main())


def test_other_files(native_echo: NativeEcho) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            async with traffic(native_echo.uri):
                for number in range(50):
                    with later(lambda: theirs.send(b"x"), 0.001):
                        assert await asyncio.wait_for(loop.sock_recv(ours, 10), 5) == b"x", number

    run(main())


def test_signal_handlers(native_echo: NativeEcho) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        handled = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, handled.set)
        async with traffic(native_echo.uri):
            for _ in range(20):
                with later(lambda: os.kill(os.getpid(), signal.SIGUSR1), 0.001):
                    await asyncio.wait_for(handled.wait(), 5)
                handled.clear()
        loop.remove_signal_handler(signal.SIGUSR1)

    run(main())


@pytest.mark.parametrize("busy_poll", [0.0, 0.5])
@pytest.mark.parametrize("connections", [0, 3], ids=["idle", "under-load"])
def test_interrupt(native_echo: NativeEcho, connections: int, busy_poll: float) -> None:
    trace = []

    async def main() -> None:
        try:
            async with traffic(native_echo.uri, connections), wirespeed.connect(native_echo.uri) as ws:
                await ws.recv()
        except asyncio.CancelledError:
            trace.append("cancelled")
            raise
        finally:
            trace.append("finally")

    interrupt = later(lambda: os.kill(os.getpid(), signal.SIGINT), 0.3)
    with within(8), interrupt, pytest.raises(KeyboardInterrupt):
        run(main(), busy_poll=busy_poll)
    # Python 3.10 does not cancel before it raises, but at the end.
    assert trace == ["cancelled", "finally"]


def test_signal_in_another_thread(native_echo: NativeEcho) -> None:
    """The signal's handler runs in this thread, which waits for something else."""
    handled = []

    async def main() -> None:
        async with wirespeed.connect(native_echo.uri, ping_interval=None):
            loop = asyncio.get_running_loop()
            here = loop.create_future()

            def handle(*_: Any) -> None:
                handled.append(time.monotonic())
                loop.call_soon_threadsafe(here.set_result, None)

            previous = signal.signal(signal.SIGUSR1, handle)
            try:
                # Sent to the timer's thread itself.
                with later(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)):
                    await asyncio.wait_for(here, 5)
            finally:
                signal.signal(signal.SIGUSR1, previous)

    with within(3):
        run(main())
    assert len(handled) == 1
    assert signal.set_wakeup_fd(-1) == -1


def test_foreign_wakeup_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        signal.set_wakeup_fd(ours.fileno())
        try:
            run(asyncio.sleep(0))
        finally:
            assert signal.set_wakeup_fd(-1) == ours.fileno()


def test_stop(native_echo: NativeEcho) -> None:
    """``stop`` schedules nothing: called by a task that the selector woke, it ends the loop nevertheless."""

    async def main() -> None:
        ws = await wirespeed.connect(native_echo.uri, ping_interval=None)
        await exchange(ws)
        asyncio.get_running_loop().stop()
        try:
            await ws.recv()
        finally:
            ws.abort()

    loop = EventLoop()
    task = loop.create_task(main())
    with within(5):
        timer = loop.call_later(8, loop.stop)
        loop.run_forever()
    timer.cancel()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_in_a_task_that_the_selector_woke(native_echo: NativeEcho, error: type[BaseException]) -> None:
    async def main() -> None:
        ws = await wirespeed.connect(native_echo.uri)
        try:
            await exchange(ws)
            raise error
        finally:
            ws.abort()

    with within(5), pytest.raises(error):
        run(main())


def test_error_in_a_task_that_the_selector_woke(native_echo: NativeEcho) -> None:
    async def fail(ws: Any) -> None:
        await exchange(ws)
        raise LookupError("in a task")

    async def main() -> None:
        async with traffic(native_echo.uri), wirespeed.connect(native_echo.uri) as ws:
            with pytest.raises(LookupError, match="in a task"):
                await asyncio.create_task(fail(ws))
            await exchange(ws)

    run(main())


def test_slow_steps_are_logged(native_echo: NativeEcho, caplog: pytest.LogCaptureFixture) -> None:
    async def slow() -> None:
        async with wirespeed.connect(native_echo.uri) as ws:
            await exchange(ws)
            caplog.clear()
            time.sleep(0.12)
            await ws.send("x")
            await ws.recv()

    run(slow(), debug=True)
    assert "Executing" in caplog.text


def test_loop_is_run_again(native_echo: NativeEcho) -> None:
    """A connection survives while its loop is not running."""
    with no_leaks(), contextlib.closing(EventLoop()) as loop:
        ws = loop.run_until_complete(wirespeed.connect(native_echo.uri))
        for _ in range(3):
            loop.run_until_complete(exchange(ws))
        loop.run_until_complete(ws.close())


def test_loop_is_closed_before_its_connection(native_echo: NativeEcho) -> None:
    with no_leaks():
        loop = EventLoop()

        async def main() -> Any:
            ws = await wirespeed.connect(native_echo.uri)
            await exchange(ws)
            return ws

        ws = loop.run_until_complete(main())
        loop.close()
        forgotten = [ws]
        del ws
        with pytest.warns(ResourceWarning):
            forgotten.clear()


def test_loop_is_dropped_with_its_connection(native_echo: NativeEcho) -> None:
    """The connection and the loop refer to each other through the selector."""

    async def main() -> Any:
        ws = await wirespeed.connect(native_echo.uri)
        await exchange(ws)
        return ws

    with no_leaks():
        loop = EventLoop()
        kept: list[Any] = [loop, loop.run_until_complete(main())]
        reference = weakref.ref(loop)
        del loop
        with warnings.catch_warnings():
            # Both warn. Recorded warnings keep their sources alive.
            warnings.simplefilter("ignore", ResourceWarning)
            kept.clear()
            gc.collect()
        assert reference() is None


def test_loops_in_threads_share_nothing(native_echo: NativeEcho) -> None:
    def work(number: int) -> None:
        async def main() -> None:
            async with wirespeed.connect(native_echo.uri) as ws:
                for count in range(300):
                    await ws.send(f"{number}: {count}")
                    assert await ws.recv() == f"{number}: {count}"
            done.append(number)

        run(main())

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    with no_leaks():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(done) == list(range(4))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of the threads that serve the tests
def test_child_of_a_fork(native_echo: NativeEcho) -> None:
    """The child drops the connections of its parent, and has its own."""

    async def main() -> int:
        async with traffic(native_echo.uri), wirespeed.connect(native_echo.uri) as ws:
            await exchange(ws)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    del ws
                    gc.collect()
                    run(own_exchange())
                    status = 0
                finally:
                    os._exit(status)
            for _ in range(20):
                await exchange(ws)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            for _ in range(20):
                await exchange(ws)
            return status

    async def own_exchange() -> None:
        async with wirespeed.connect(native_echo.uri) as ws:
            await exchange(ws)

    assert run(main()) == 0
