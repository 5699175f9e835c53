"""Waiting for the tasks of a closing server, from outside or from one of these tasks."""

from __future__ import annotations

import asyncio

__all__ = ["TaskDrain"]


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
