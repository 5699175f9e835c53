"""Common code of the programs of a soak: a port, their figures, and the end with their input."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Figures", "announce", "figures_of_loop", "objects", "serve_figures"]

Figures = Callable[[], dict[str, float]]


def announce(port: int) -> None:
    print(f"port {port}", flush=True)


def objects(*names: str) -> int:
    """Returns the number of living objects of ours, by the names of their types."""
    gc.collect()
    return sum(type(one).__name__ in names for one in gc.get_objects())


def figures_of_loop(loop: asyncio.AbstractEventLoop, *names: str) -> Figures:
    """Returns tasks of a loop and objects, counted by the thread of the loop."""

    def figures() -> dict[str, float]:
        async def count() -> dict[str, float]:
            return {"tasks": len(asyncio.all_tasks()), "objects": objects(*names)}

        return asyncio.run_coroutine_threadsafe(count(), loop).result(60)

    return figures


def serve_figures(figures: Figures) -> threading.Thread:
    """Answers each line of the standard input with figures, in a thread. The process ends with its input."""

    def run() -> None:
        for _ in sys.stdin:
            try:
                answer: dict[str, Any] = figures()
            except Exception as exc:
                answer = {"problem": repr(exc)}
            print("figures " + json.dumps(answer), flush=True)
        os._exit(0)

    # Errors of the peers are not logged; errors of the library are.
    logging.basicConfig(level=logging.ERROR)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
