"""What the programs of a soak count: objects of the library, and tasks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

Figures = Callable[[], dict[str, float]]


def objects(*names: str) -> int:
    """Returns the number of living objects of ours, by the names of their types."""
    gc.collect()
    return sum(type(one).__name__ in names for one in gc.get_objects())


def figures_of_loop(loop: asyncio.AbstractEventLoop, *names: str) -> Figures:
    """Returns tasks of a loop and objects, counted by the thread of the loop."""

    async def count() -> dict[str, float]:
        return {"tasks": len(asyncio.all_tasks()), "objects": objects(*names)}

    return lambda: asyncio.run_coroutine_threadsafe(count(), loop).result(60)
