"""``new_event_loop`` and the policy: the standard library's loop, on our selector.

Where there is a native selector the tests run on it and on its oracle.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import selectors
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from support.checks import no_leaks, within
from support.selector_oracle import NATIVE_CLASSES
from wirespeed.asyncio import loop as module
from wirespeed.asyncio.loop import EventLoop, Selector, new_event_loop, run

pytestmark = [
    pytest.mark.wirespeed_only("the loop is ours"),
    pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll"),
]


@pytest.fixture(params=NATIVE_CLASSES, ids=lambda kind: kind.__name__, autouse=True)
def _native_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selector, "native_class", request.param)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = new_event_loop()
    yield made
    made.close()


def deprecated(since: tuple[int, int]) -> Any:
    """Expects a deprecation warning of the block from that version of Python on."""
    if sys.version_info >= since:
        return pytest.warns(DeprecationWarning, match="deprecated|event loop")
    return contextlib.nullcontext()


@contextlib.contextmanager
def policy(new: Any) -> Iterator[None]:
    with deprecated((3, 14)):
        asyncio.set_event_loop_policy(new)
    try:
        yield
    finally:
        with deprecated((3, 14)):
            asyncio.set_event_loop_policy(None)


def is_ours(loop: asyncio.AbstractEventLoop) -> bool:
    return type(loop) is EventLoop and hasattr(loop, "_wirespeed_selector")


# new_event_loop and the class


def test_new_event_loop(loop: asyncio.AbstractEventLoop) -> None:
    assert is_ours(loop)
    assert isinstance(loop, asyncio.SelectorEventLoop)
    assert loop.run_until_complete(asyncio.sleep(0, "result")) == "result"


def test_connections_find_the_selector(loop: Any) -> None:
    assert isinstance(loop._wirespeed_selector, cast(Any, Selector.native_class or object))


def test_custom_selector() -> None:
    with contextlib.closing(EventLoop(Selector())) as loop:
        assert is_ours(loop)
    with contextlib.closing(EventLoop(selectors.SelectSelector())) as loop:
        assert not hasattr(loop, "_wirespeed_selector")
        assert loop.run_until_complete(asyncio.sleep(0, "result")) == "result"
    with contextlib.closing(EventLoop()) as loop:
        assert is_ours(loop)


@pytest.mark.parametrize("make", [new_event_loop, lambda **options: run(cast(Any, None), **options)])
@pytest.mark.parametrize(("busy_poll", "error"), [(-1, ValueError), (float("inf"), ValueError), ("1", TypeError)])
def test_busy_poll_is_checked(make: Callable[..., Any], busy_poll: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="busy_poll"):
        make(busy_poll=busy_poll)


def test_loop_with_unknown_internals() -> None:
    """A future Python may keep its callbacks differently. Then nothing is served inside of select."""
    other: Any = types.SimpleNamespace(_ready=iter(()), _scheduled=[])
    with Selector() as selector:
        selector.attach(other)
    assert not hasattr(other, "_wirespeed_selector")


def test_loop_is_stopped_closed_and_run_again(loop: asyncio.AbstractEventLoop) -> None:
    ran: list[int] = []
    for number in range(3):
        loop.call_soon(ran.append, number)
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
    loop.stop()
    loop.run_forever()
    assert ran == [0, 1, 2]
    loop.close()
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_forever()


def test_loops_nest_in_threads() -> None:
    def work(number: int) -> None:
        results[number] = run(asyncio.sleep(0.05, number))

    results: dict[int, int] = {}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == list(range(5))


def test_run_forever_in_a_thread(loop: asyncio.AbstractEventLoop) -> None:
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with within(5):
        futures = [asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01, number), loop) for number in range(50)]
        assert [future.result(5) for future in futures] == list(range(50))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
    assert not thread.is_alive()


def test_loops_leave_no_references() -> None:
    with no_leaks():
        for busy_poll in (0.0, 0.001):
            made = new_event_loop(busy_poll=busy_poll)
            made.run_until_complete(asyncio.sleep(0.01))
            made.close()
            run(asyncio.sleep(0))


def test_closed_loop_is_collected() -> None:
    made = new_event_loop()
    made.run_until_complete(asyncio.sleep(0))
    references = [weakref.ref(made), weakref.ref(made._selector)]  # type: ignore[attr-defined]
    made.close()
    del made
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_dropped_loop_warns_and_is_closed() -> None:
    """Also while the selector and the loop refer to each other."""
    references = [weakref.ref(new_event_loop())]
    with no_leaks(), pytest.warns(ResourceWarning, match="unclosed event loop"):
        gc.collect()
    assert references[0]() is None


def test_timers_after_many_were_cancelled(loop: asyncio.AbstractEventLoop) -> None:
    """The loop then replaces its list of timers."""

    async def main() -> None:
        first = loop._scheduled  # type: ignore[attr-defined]
        for timer in [loop.call_later(30, list) for _ in range(300)]:
            timer.cancel()
        for _ in range(3):
            with within(1, at_least=0.01):
                await asyncio.sleep(0.01)
        assert loop._scheduled is not first  # type: ignore[attr-defined]

    loop.run_until_complete(main())


def test_slow_callbacks_are_logged(loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        time.sleep(0.02)

    loop.set_debug(True)
    loop.slow_callback_duration = 0.01
    loop.run_until_complete(main())
    assert "Executing <Task" in caplog.text


def test_child_of_a_fork_has_a_loop_of_its_own() -> None:
    program = """
        import asyncio, os, sys
        from wirespeed.asyncio.loop import run

        async def main():
            sleeping = asyncio.create_task(asyncio.sleep(0.3, "parent"))
            await asyncio.sleep(0)
            child = os.fork()
            if child == 0:
                assert asyncio._get_running_loop() is None
                status = 0 if run(asyncio.sleep(0.01, "child")) == "child" else 1
                os._exit(status)
            answer = await asyncio.to_thread(os.waitpid, child, 0)
            print(os.waitstatus_to_exitcode(answer[1]), await sleeping)

        run(main())
    """
    assert python(program) == "0 parent\n"


def python(program: str, *options: str, **environment: str) -> str:
    """Runs a program in a new interpreter and returns its output."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout


# Other features of asyncio


def test_signals_processes_threads_and_timers(loop: asyncio.AbstractEventLoop) -> None:
    seen: list[str] = []

    async def main() -> None:
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "signal")
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", 'read line; echo "$line"; exit 3', stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        loop.call_later(0.05, seen.append, "timer")
        thread = asyncio.to_thread(loop.call_soon_threadsafe, seen.append, "thread")
        os.kill(os.getpid(), signal.SIGUSR1)
        output, _ = await asyncio.gather(process.communicate(b"process\n"), thread)
        seen.append(output[0].decode().strip())
        assert await process.wait() == 3
        while len(seen) < 4:
            await asyncio.sleep(0.01)
        assert loop.remove_signal_handler(signal.SIGUSR1)

    with within(10):
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
    assert sorted(seen) == ["process", "signal", "thread", "timer"]


def test_busy_poll_does_not_delay_anything() -> None:
    """Timers, signals and other threads end the wait immediately."""
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "signal")
        await asyncio.sleep(0.05)
        seen.append("timer")
        await asyncio.to_thread(time.sleep, 0.05)
        seen.append("thread")
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        while seen[-1] != "signal":
            await asyncio.sleep(0.01)

    with within(10):
        run(main(), busy_poll=30)
    assert seen == ["timer", "thread", "signal"]


def test_busy_poll_burns_a_core_while_waiting() -> None:
    async def wait() -> float:
        before = time.thread_time()
        await asyncio.sleep(0.3)
        return time.thread_time() - before

    assert run(wait()) < 0.1
    # Other processes may need the processor too.
    assert run(wait(), busy_poll=1) > 0.01


# Policy


@pytest.mark.skipif(not hasattr(module, "EventLoopPolicy"), reason="this Python has no policies")
class TestPolicy:
    def test_makes_our_loops(self) -> None:
        with policy(module.EventLoopPolicy()):
            with contextlib.closing(asyncio.new_event_loop()) as loop:
                assert is_ours(loop)
            assert asyncio.run(_loop_is_ours()) is True
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            assert not is_ours(loop)

    @pytest.mark.skipif(sys.version_info >= (3, 14), reason="get_event_loop makes no loop any more")
    def test_get_event_loop(self) -> None:
        with policy(module.EventLoopPolicy()):
            with deprecated((3, 12)):
                loop = asyncio.get_event_loop_policy().get_event_loop()
            assert is_ours(loop)
            asyncio.set_event_loop(None)
            loop.close()

    def test_busy_poll(self) -> None:
        with policy(module.EventLoopPolicy(busy_poll=0.001)):
            assert asyncio.run(_loop_is_ours()) is True
        with pytest.raises(ValueError, match="busy_poll"):
            module.EventLoopPolicy(busy_poll=-1)

    def test_without_epoll(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Selector, "native_class", None)
        with policy(module.EventLoopPolicy()):
            with contextlib.closing(new_event_loop()) as loop:
                assert type(loop) is asyncio.SelectorEventLoop
            assert run(_loop_is_ours()) is False

    def test_run_needs_no_policy(self) -> None:
        with policy(module.EventLoopPolicy()):
            assert run(_loop_is_ours()) is True


async def _loop_is_ours() -> bool:
    return is_ours(asyncio.get_running_loop())


def test_import_does_not_warn() -> None:
    """No warning even where policies are deprecated."""
    assert python("import wirespeed.asyncio.loop", "-W", "error") == ""


# Other systems


@pytest.mark.parametrize("busy_poll", [0.0, 0.1])
def test_without_epoll(monkeypatch: pytest.MonkeyPatch, busy_poll: float) -> None:
    monkeypatch.setattr(Selector, "native_class", None)
    with contextlib.closing(new_event_loop(busy_poll=busy_poll)) as loop:
        assert type(loop) is asyncio.SelectorEventLoop
    with contextlib.closing(EventLoop()) as loop:
        assert not hasattr(loop, "_wirespeed_selector")
        assert loop.run_until_complete(asyncio.sleep(0, "result")) == "result"
    assert run(asyncio.sleep(0, "result"), busy_poll=busy_poll) == "result"


if sys.version_info >= (3, 11):

    def test_runner_takes_the_loop() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            assert is_ours(runner.get_loop())
            assert runner.run(_loop_is_ours()) is True
        with asyncio.Runner(loop_factory=functools.partial(new_event_loop, busy_poll=0.001)) as runner:
            assert runner.run(_loop_is_ours()) is True
