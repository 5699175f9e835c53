"""Tasks: the current one, deadlines, yielding, draining, and leaving a connection without awaiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import opcode
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._connection import Connection

__all__ = [
    "Deadline",
    "TaskDrain",
    "can_suspend",
    "current_task",
    "is_turn_due",
    "leave",
    "start_task",
    "yield_to_loop",
]

# From Python 3.14 on, ``asyncio.current_task``, a C function, does not find tasks written in Python. These are
# instances of ``asyncio.tasks._PyTask``, which some programs use instead of ``asyncio.Task``.
_current_python_task: Callable[[Any], asyncio.Task[Any] | None] | None = getattr(
    asyncio.tasks, "_py_current_task", None
)


def current_task(loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Task[Any] | None:
    """Return the current task, ``None`` outside of a task.

    Args:
        loop: The event loop; ``None`` for the one that runs in this thread.

    Raises:
        RuntimeError: No event loop is running in this thread.
    """
    task: asyncio.Task[Any] | None = asyncio.current_task(loop)
    if task is None and _current_python_task is not None:
        return _current_python_task(loop)
    return task


# A loop refers to its tasks weakly, so they are kept here. Each set is changed in the thread of its loop only.
_started: dict[asyncio.AbstractEventLoop, set[asyncio.Task[None]]] = {}


def start_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run a coroutine in a task that is kept alive until it is done.

    Tasks of a closed loop are kept until the next call, on any loop.

    Args:
        loop: The event loop that runs in this thread.
        work: The coroutine.
    """
    for other in tuple(_started):
        if other.is_closed():
            _started.pop(other, None)
    task = loop.create_task(work)
    _started.setdefault(loop, set()).add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[None]) -> None:
    loop = task.get_loop()
    tasks = _started.get(loop)
    if tasks is not None:
        tasks.discard(task)
        if not tasks:
            _started.pop(loop, None)


def _opening() -> str:
    return "timed out during the opening handshake; raise open_timeout to wait longer"


class Deadline:
    """A context manager that raises ``TimeoutError`` in a coroutine when its block takes too long.

    It works like ``asyncio.timeout``, which Python 3.10 lacks, and its exception names the step that took too long. It
    cancels the task, so code in the block must let ``CancelledError`` through. If the task is also cancelled by
    another caller, even at the same time, it stays cancelled.

    Args:
        seconds: Limit for the block, ``None`` for no limit.

    Attributes:
        text: Function that returns the text of the exception: which step is under way.
        explain: Function that returns an exception to raise instead, or ``None``. It is called when the time is over.
        is_over: Whether the time is over.
    """

    def __init__(self, seconds: float | None) -> None:
        self.text: Callable[[], str] = _opening
        self.explain: Callable[[], Exception | None] | None = None
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False

    def opening(self) -> None:
        """Name the opening handshake in the exception, which is also the initial text."""
        self.text = _opening

    def __enter__(self) -> Self:
        if self._seconds is not None:
            task = current_task()
            if task is None:
                raise RuntimeError("a connection can be opened in a task only")
            self._task = task
            self._cancelling = _cancelling(task)
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.is_over and _uncancel(self._task) <= self._cancelling and exc_type is asyncio.CancelledError:
            # Before `explain`, which ends the step that the text describes.
            late = TimeoutError(self.text())
            raise (self.explain and self.explain()) or late from None

    def _expire(self) -> None:
        self.is_over = True
        self._task.cancel()


# Python 3.10 does not count cancellations: if two happen at the same time, one of them is lost.


def _cancelling(task: asyncio.Task[object]) -> int:
    return getattr(task, "cancelling", int)()


def _uncancel(task: asyncio.Task[object]) -> int:
    return getattr(task, "uncancel", int)()


# Awaiting a completed operation does not suspend, so a task that repeats it would block the loop. The native core
# counts messages by itself, with the option `yield_after`. This is its default: some 0.3 ms of the cheapest calls.
_CALLS = 1024

_count = itertools.count(1).__next__


def is_turn_due() -> bool:
    """Count a call over all connections and loops; return whether the caller must await :func:`yield_to_loop`."""
    return _count() % _CALLS == 0


async def yield_to_loop() -> None:
    """Let the event loop run everything else that is ready."""
    await asyncio.sleep(0)


class TaskDrain:
    """Waits until the tasks of a server have ended. Tasks that wait for it themselves do not hold up each other.

    Args:
        loop: The event loop.
        tasks: The tasks of the server. Ended tasks are removed, sooner or later.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[None]]) -> None:
        self._loop = loop
        self._tasks = tasks
        # Tasks that wait in :meth:`join`, and the future that releases them.
        self._joined: set[asyncio.Task[None]] = set()
        self._released = loop.create_future()
        # Tasks that :meth:`wait_ended` waits for, and the future that is done when all of them have ended or joined.
        self._awaited: set[asyncio.Task[None]] = set()
        self._awaited_done = loop.create_future()

    async def join(self, task: asyncio.Task[None]) -> None:
        """Wait, in one of the tasks of a closing server, until all other tasks have ended or wait here too.

        Args:
            task: The current task.
        """
        self._joined.add(task)
        self._remove(task)
        try:
            await asyncio.shield(self._released)
        finally:
            self._joined.discard(task)

    async def wait_ended(self, until: float | None = None) -> bool:
        """Wait until all tasks have ended. Tasks in :meth:`join` are released when only they are left.

        Args:
            until: Time of the loop at which to stop waiting, ``None`` for no limit.

        Returns:
            Whether all tasks have ended.
        """
        # A task that is cancelled before its first step does not remove itself, so look at done().
        while tasks := {task for task in self._tasks if not task.done()}:
            awaited = tasks - self._joined
            if not awaited:
                self.release()
                awaited = tasks
            if not await self._wait_for(awaited, until):
                return False
        return True

    def release(self) -> None:
        """Release all tasks in :meth:`join`."""
        if not self._released.done():
            self._released.set_result(None)
        self._released = self._loop.create_future()

    async def _wait_for(self, awaited: set[asyncio.Task[None]], until: float | None) -> bool:
        """Wait until each of these tasks has ended or joined; return ``False`` after the time ``until``."""
        self._awaited = awaited
        self._awaited_done = self._loop.create_future()
        # They may be many and end one by one, so each gets a callback instead of a scan of all.
        for task in awaited:
            task.add_done_callback(self._remove)
        try:
            timeout = None if until is None else max(0.0, until - self._loop.time())
            await asyncio.wait([self._awaited_done], timeout=timeout)
            return not self._awaited
        finally:
            for task in self._awaited:
                task.remove_done_callback(self._remove)

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._awaited.discard(task)
        if not self._awaited and not self._awaited_done.done():
            self._awaited_done.set_result(None)


_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR

# Opcodes of an await: SEND with its cache, YIELD_VALUE and RESUME; in Python 3.10 YIELD_FROM.
_SEND, _YIELD_VALUE, _YIELD_FROM = (opcode.opmap.get(name) for name in ("SEND", "YIELD_VALUE", "YIELD_FROM"))

# Coroutine functions of a loop that asyncio.run calls after the tasks have ended.
_SHUTDOWN = ("shutdown_asyncgens", "shutdown_default_executor")


def can_suspend(frame: FrameType) -> bool:
    """Return whether a coroutine that handles ``GeneratorExit`` may await something.

    It may if a task awaits ``aclose()`` of an asynchronous generator. It may not if the coroutine is closed by
    ``close()`` or collected as garbage. If neither is certain, the result is ``False``.

    Args:
        frame: The frame of the coroutine.
    """
    try:
        task = current_task()
    except RuntimeError:
        return False
    if task is None:
        return False
    coroutine = task.get_coro()
    root = getattr(coroutine, "cr_frame", None)
    while frame is not root:
        caller = frame.f_back
        if caller is None or not caller.f_code.co_flags & _COROUTINES:
            # The task of loop.shutdown_asyncgens, or of a collected generator, runs aclose() itself.
            owners = gc.get_referents(coroutine) if root is None else []
            return any(getattr(owner, "ag_frame", None) is frame for owner in owners)
        if not _awaits(caller):
            return False
        frame = caller
    return True


def _awaits(frame: FrameType) -> bool:
    """Return whether a frame is suspended at an await rather than at a call."""
    code, at = frame.f_code.co_code, frame.f_lasti
    before, here, after = (code[place] if 0 <= place < len(code) else -1 for place in (at - 2, at, at + 2))
    # After an exception was thrown in, the position is behind YIELD_VALUE in 3.13, and before YIELD_FROM in 3.10.
    return here in (_SEND, _YIELD_VALUE, _YIELD_FROM) or before in (_SEND, _YIELD_VALUE) or after == _YIELD_FROM


def leave(connection: Connection, code: int) -> None:
    """Begin to close a connection without waiting. The event loop sends the queued messages, then closes it.

    This is for code that cannot await: ``__del__``, and coroutines that are closed or collected.

    ``asyncio.run`` waits for the end of the connection before it returns, unless it is already closing asynchronous
    generators.

    Args:
        connection: The connection.
        code: Close code.
    """
    connection._leave(code)
    loop = connection._loop
    if asyncio._get_running_loop() is not loop or _is_shutting_down(loop):
        return
    over = connection._closed_future()
    if over is None:
        return
    # asyncio.run cancels the remaining tasks when main() returns, but closes asynchronous generators and waits for
    # them.
    waiting = _wait_when_closed(over)
    _step(waiting.__anext__())
    over.add_done_callback(lambda _: _step(waiting.aclose()))


def _is_shutting_down(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop has begun to close asynchronous generators: it warns of generators that begin later."""
    called: bool | None = getattr(loop, "_asyncgens_shutdown_called", None)
    if called is None:
        # uvloop does not have this attribute.
        coroutines = [task.get_coro() for task in asyncio.all_tasks(loop)]
        return any(getattr(coroutine, "__name__", None) in _SHUTDOWN for coroutine in coroutines)
    return called


def _step(generating: Awaitable[None]) -> None:
    # RuntimeError: the loop is already closing the generator.
    with contextlib.suppress(StopIteration, RuntimeError):
        generating.__await__().__next__()


async def _wait_when_closed(over: asyncio.Future[None]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if not over.done():
            await asyncio.wait([over])
