"""``run`` behaves like ``asyncio.run``, on our loop. Most tests run both and compare."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.checks import no_leaks, within
from support.selector_oracle import NATIVE_CLASSES
from wirespeed.asyncio.loop import EventLoop, Selector, new_event_loop, run

pytestmark = [
    pytest.mark.wirespeed_only("the loop is ours"),
    pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="this system has no epoll"),
]


@pytest.fixture(params=NATIVE_CLASSES, ids=lambda kind: kind.__name__, autouse=True)
def _native_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selector, "native_class", request.param)


def test_run_result() -> None:
    async def main() -> bool:
        return type(asyncio.get_running_loop()) is EventLoop

    assert run(main()) is True


def test_run_closes_the_loop() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run(main()).is_closed()
    with pytest.raises(RuntimeError, match="no current event loop"):
        asyncio.get_event_loop()


@pytest.mark.parametrize("debug", [True, False, None])
def test_run_debug(debug: bool | None) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    assert run(main(), debug=debug) is bool(debug)


def test_run_debug_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> bool:
        return asyncio.get_running_loop().get_debug()

    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    assert run(main()) is True
    assert run(main(), debug=False) is False


@pytest.mark.parametrize("main", [None, 1, lambda: None])
def test_run_needs_a_coroutine(main: Any) -> None:
    error, text = (TypeError, "awaitable") if sys.version_info >= (3, 14) else (ValueError, "a coroutine was expected")
    with no_leaks(), pytest.raises(error, match=text):
        run(main)


def test_run_inside_a_loop() -> None:
    async def main() -> None:
        inner = asyncio.sleep(0)
        try:
            run(inner)
        finally:
            inner.close()

    with pytest.raises(RuntimeError, match=r"wirespeed\.run\(\) cannot be called from a running event loop"):
        run(main())


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        run(None, True)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError):
        new_event_loop(1.0)  # type: ignore[call-arg]


# run, compared with asyncio.run

Trace = list[Any]
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="default")


async def _generator(trace: Trace) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await asyncio.sleep(0)
        trace.append("generator closed")


async def raises(trace: Trace) -> None:
    raise LookupError("main")


async def exits(trace: Trace) -> None:
    raise SystemExit(3)


async def leaves_tasks(trace: Trace) -> str:
    ended: set[int] = set()

    async def stubborn(number: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.add(number)
            if number == 1:
                raise LookupError("at the end") from None
            raise

    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: trace.append((context["message"].split("during")[0], str(context["exception"])))
    )
    trace.append(ended)
    trace.append(len([asyncio.create_task(stubborn(number)) for number in range(3)]))
    await asyncio.sleep(0)
    return "result"


async def leaves_generator(trace: Trace) -> None:
    async for _ in (generator := _generator(trace)):
        trace.append(generator and "open")
        break


async def leaves_threads(trace: Trace) -> None:
    def work() -> None:
        time.sleep(0.1)
        trace.append("thread done")

    asyncio.get_running_loop().run_in_executor(None, work)


async def sees_the_current_loop(trace: Trace) -> None:
    loop = asyncio.get_running_loop()
    # Seen outside of tasks: the loop passed to set_event_loop.
    trace.append(await asyncio.to_thread(lambda: None))
    trace.append(asyncio.get_event_loop() is loop)
    trace.append(VARIABLE.get())
    VARIABLE.set("main")


async def is_interrupted(trace: Trace) -> None:
    try:
        asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        trace.append("cancelled")
        raise
    finally:
        trace.append("finally")


async def is_interrupted_from_outside(trace: Trace) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        timer.join()
        trace.append("finally")


async def survives_an_interrupt(trace: Trace) -> str:
    try:
        asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(10)
    except asyncio.CancelledError:
        trace.append("ignored")
    return "result"


async def is_interrupted_twice(trace: Trace) -> None:
    for _ in range(2):
        try:
            asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            trace.append("ignored")


async def is_interrupted_while_computing(trace: Trace) -> None:
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000):
        pass
    trace.append("computed")
    await asyncio.sleep(0)
    trace.append("not reached")


async def cancels_itself(trace: Trace) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


SCENARIOS = [
    raises,
    exits,
    leaves_tasks,
    leaves_generator,
    leaves_threads,
    sees_the_current_loop,
    is_interrupted,
    is_interrupted_from_outside,
    survives_an_interrupt,
    is_interrupted_twice,
    is_interrupted_while_computing,
    cancels_itself,
]


def _trace(runner: Callable[..., Any], main: Callable[[Trace], Any], options: dict[str, Any]) -> Trace:
    trace: Trace = []
    try:
        trace.append(runner(main(trace), **options))
    except BaseException as exc:
        trace.append((type(exc), str(exc)))
    trace.append(VARIABLE.get())
    trace.append(signal.getsignal(signal.SIGINT))
    with contextlib.suppress(RuntimeError):
        trace.append(asyncio.get_event_loop())
    return trace


@pytest.mark.parametrize("options", [{}, {"debug": True}], ids=["", "debug"])
@pytest.mark.parametrize("main", SCENARIOS, ids=lambda main: main.__name__)
def test_run_is_like_that_of_asyncio(main: Callable[[Trace], Any], options: dict[str, Any]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with within(10):
            assert _trace(run, main, options) == _trace(asyncio.run, main, options)
    finally:
        signal.signal(signal.SIGINT, before)
