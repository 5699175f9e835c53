"""Runs blocking reads and writes in threads beside an event loop.

A blocked pipe must not prevent a connection from answering pings. The standard streams cannot be made non-blocking,
because other processes share them.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Worker"]

T = TypeVar("T")


class Worker:
    """A thread that runs one call after another. The process can end during a call.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        # A daemon thread, because Python would wait for other threads, which may be blocked.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread and return its result.

        Args:
            function: The function.
            *arguments: Its arguments.
        """
        if not self._thread.is_alive():
            self._thread.start()
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((lambda: function(*arguments), future))
        return await future

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            result = error = None
            try:
                result = call()
            except Exception as exc:
                error = exc
            # If the loop is closed, no task waits for the result.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_set_result, future, result, error)


def _set_result(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
