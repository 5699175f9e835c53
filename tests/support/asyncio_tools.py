"""Runs coroutines in tests: on every kind of event loop, in bounded time, and with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib.util
import io
import os
import traceback
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from .load_scaling import load_scaled
from .subject import IS_WIRESPEED

__all__ = [
    "LOOPS",
    "SETTINGS",
    "WATCHING",
    "Run",
    "Setting",
    "cancelled",
    "eager",
    "new_loop",
    "one_loop",
    "run",
    "settled",
    "soon",
    "spin",
    "still_watched",
]

T = TypeVar("T")

# The fixture ``run``.
Run = Callable[..., Any]

# Longer than any expected wait of a test.
DEADLINE = 20.0

# Shorter than the watchdog of the suite, however busy the machine is.
MOST = 90.0


def _loops() -> list[str]:
    loops = ["asyncio"]
    if importlib.util.find_spec("uvloop") is not None:
        loops.append("uvloop")
    if IS_WIRESPEED:
        import wirespeed

        if hasattr(wirespeed, "new_event_loop"):
            loops.append("wirespeed")
    return loops


LOOPS = _loops()


@dataclasses.dataclass(frozen=True)
class Setting:
    """An event loop, and the connection's I/O backend."""

    loop: str
    io_backend: str

    def __str__(self) -> str:
        return f"{self.loop}-{self.io_backend}"


def _settings() -> list[Setting]:
    if not IS_WIRESPEED:
        return [Setting(loop, "transport") for loop in LOOPS]
    both = [Setting(loop, port) for loop in LOOPS if loop != "wirespeed" for port in ("fd", "transport")]
    return both + [Setting(loop, "fd") for loop in LOOPS if loop == "wirespeed"]


SETTINGS = _settings()

# Loops that wirespeed does not know: they watch the socket of each connection.
WATCHING = [Setting(f"{loop}-watching", "fd") for loop in LOOPS if IS_WIRESPEED and loop != "wirespeed"]


def one_loop() -> list[Setting]:
    """Returns the settings without uvloop: for long tables, in which another loop adds no coverage."""
    return [setting for setting in SETTINGS if setting.loop != "uvloop"]


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Returns a new event loop.

    Args:
        kind: One of ``LOOPS``, or the loop of one of ``WATCHING``.
    """
    known, _, watching = kind.partition("-")
    loop = _new_loop(known)
    if watching:
        loop._wirespeed_nests = False  # type: ignore[attr-defined]
    return loop


def _new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    if kind == "wirespeed":
        import wirespeed

        return wirespeed.new_event_loop()
    return asyncio.new_event_loop()


def _stacks(loop: asyncio.AbstractEventLoop) -> str:
    out = io.StringIO()
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=out)
    return out.getvalue()


def _describe(context: dict[str, Any]) -> str:
    text: str = context["message"]
    if exc := context.get("exception"):
        text += "\n" + "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    for name in ("task", "future", "handle", "transport"):
        if name in context:
            text += f"\n{name}: {context[name]!r}"
    return text


class _Limit:
    """Cancels a task when its time is over, and stops the loop when the task ignores that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], seconds: float) -> None:
        self.loop = loop
        self.task = task
        self.error: TimeoutError | None = None
        self.seconds = seconds
        self.timer = loop.call_later(seconds, self.expire)

    def expire(self) -> None:
        self.error = TimeoutError(f"not done after {self.seconds} s; tasks:\n{_stacks(self.loop)}")
        self.task.cancel()
        self.timer = self.loop.call_later(3, self.loop.stop)


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    loop: str = "asyncio",
    timeout: float = DEADLINE,
    debug: bool = False,
    prepare: Callable[[asyncio.AbstractEventLoop], Any] | None = None,
) -> T:
    """Runs ``main()`` on a new loop and returns its result.

    It fails when that takes too long, when tasks or watched descriptors are left, and when the exception handler was
    called: for an exception that was never retrieved, a destroyed pending task, a callback that raised.

    Args:
        main: The coroutine function to run.
        loop: One of ``LOOPS``, or the loop of one of ``WATCHING``.
        timeout: Seconds it may take.
        debug: Run the loop in debug mode.
        prepare: Called with the loop before anything runs on it.
    """
    running = new_loop(loop)
    running.set_debug(debug)
    problems: list[dict[str, Any]] = []
    running.set_exception_handler(lambda _, context: problems.append(context))
    if prepare is not None:
        prepare(running)
    limit = None
    try:
        task = running.create_task(main())
        limit = _Limit(running, task, min(load_scaled(timeout), MOST))
        try:
            result = running.run_until_complete(task)
        finally:
            limit.timer.cancel()
    except BaseException:
        _abandon(running)
        if limit is not None and limit.error is not None:
            raise limit.error from None
        raise
    del task, limit
    try:
        left = _clean_up(running)
    finally:
        running.close()
    assert left == "", f"left behind:\n{left}"
    assert not problems, "\n".join(_describe(context) for context in problems)
    return result


def _abandon(loop: asyncio.AbstractEventLoop) -> None:
    """Closes a loop after a failed test. Open resources would warn, and an exception breaks the closing of uvloop."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        _clean_up(loop)
        loop.close()


def _clean_up(loop: asyncio.AbstractEventLoop) -> str:
    """Ends remaining tasks on the loop, after a moment to end by themselves; returns those that did not."""
    loop.set_task_factory(None)
    loop.run_until_complete(_settle())
    left = _stacks(loop)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=3))
    tasks.clear()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    # Exceptions that were never retrieved are reported now, to the handler of this loop, and not in a later test.
    gc.collect(1)
    loop.run_until_complete(_settle())
    return left + "".join(f"{text}\n" for text in still_watched(loop))


def still_watched(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Returns the descriptors that a loop still watches, as far as it can be queried.

    Args:
        loop: The loop; it does not run.
    """
    selector = getattr(loop, "_selector", None)
    if selector is None:
        return []
    found = []
    for key in list(selector.get_map().values()):
        if "EpollCallback.serve()" in repr(key.data):
            # The epoll among the descriptors of the loop, which exists until the loop is closed.
            found += _sockets_watched_by(key.fd)
        elif key.fd != loop._ssock.fileno():  # type: ignore[attr-defined]
            found.append(f"descriptor {key.fd} is still watched for {key.data!r}")
    return found


def _sockets_watched_by(poller: int) -> list[str]:
    lines = Path(f"/proc/self/fdinfo/{poller}").read_text().splitlines()
    descriptors = [line.split()[1] for line in lines if line.startswith("tfd:")]
    kinds = {descriptor: os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors}
    return [f"descriptor {number} ({kind}) is still watched" for number, kind in kinds.items() if "timer" not in kind]


async def _settle() -> None:
    await spin()
    if not IS_WIRESPEED:
        # Its keepalive tasks end a little after their connections.
        own = asyncio.current_task()
        if tasks := [task for task in asyncio.all_tasks() if task is not own]:
            await asyncio.wait(tasks, timeout=1)


async def spin(turns: int = 5) -> None:
    """Lets the loop turn a few times: all scheduled callbacks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def soon(condition: Callable[[], Any], timeout: float = 5.0) -> None:
    """Waits until a condition holds that other threads, or the kernel, make true."""
    deadline = asyncio.get_running_loop().time() + load_scaled(timeout)
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true"
        await asyncio.sleep(0.002)


async def settled(value: Callable[[], T], seconds: float = 0.1, timeout: float = 15.0) -> T:
    """Waits until a value has been stable for some time, and returns it.

    A busy machine may make it look stable too early, so the test must hold for any earlier value as well.
    """
    clock = asyncio.get_running_loop().time
    last, since, deadline = value(), clock(), clock() + load_scaled(timeout)
    while clock() - since < seconds:
        assert clock() < deadline, f"it still changes: {last}"
        await asyncio.sleep(0.005)
        if (now := value()) != last:
            last, since = now, clock()
    return last


async def cancelled(task: asyncio.Future[Any]) -> bool:
    """Cancels a task, waits for its end, and returns whether it was cancelled; other exceptions are raised."""
    task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


def eager(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """``asyncio.eager_task_factory`` of Python 3.12, for loops that pass it the arguments of 3.14."""
    return asyncio.Task(coro, loop=loop, **{**options, "eager_start": True})
