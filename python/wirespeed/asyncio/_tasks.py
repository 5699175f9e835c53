"""Tasks: the current task, also of a task class written in Python, and tasks that are kept alive until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["current_task", "start_task"]

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
