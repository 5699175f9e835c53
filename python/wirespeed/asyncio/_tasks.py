"""Which task runs now, whoever has written it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["current_task"]

# From Python 3.14 on, tasks in Python are kept where ``asyncio.current_task``, a C function, does not look.
# They are those of ``asyncio.tasks._PyTask``, with which some programs replace ``asyncio.Task``.
_current_python_task: Callable[[Any], asyncio.Task[Any] | None] | None = getattr(
    asyncio.tasks, "_py_current_task", None
)


def current_task(loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Task[Any] | None:
    """Return the task that runs now, ``None`` outside of any.

    Args:
        loop: The event loop; ``None`` for the one that runs in this thread.

    Raises:
        RuntimeError: No event loop is running in this thread.
    """
    task: asyncio.Task[Any] | None = asyncio.current_task(loop)
    if task is None and _current_python_task is not None:
        return _current_python_task(loop)
    return task
