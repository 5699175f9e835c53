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
        self._alone = loop.create_future()
        # Tasks that :meth:`ended` waits for, and the future that is done when all of them have ended or joined.
        self._others: set[asyncio.Task[None]] = set()
        self._settled = loop.create_future()

    async def join(self, task: asyncio.Task[None]) -> None:
        """Wait, in one of the tasks of a closing server, until all other tasks have ended or wait here too.

        Args:
            task: The current task.
        """
        self._joined.add(task)
        self._leave(task)
        try:
            await asyncio.shield(self._alone)
        finally:
            self._joined.discard(task)

    async def ended(self, until: float | None = None) -> bool:
        """Wait until all tasks have ended. Tasks in :meth:`join` are released when only they are left.

        Args:
            until: Time of the loop at which to stop waiting, ``None`` for no limit.

        Returns:
            Whether all tasks have ended.
        """
        # A task that is cancelled before its first step does not remove itself, so look at done().
        while tasks := {task for task in self._tasks if not task.done()}:
            others = tasks - self._joined
            if not others:
                self.release()
                others = tasks
            if not await self._wait_for(others, until):
                return False
        return True

    def release(self) -> None:
        """Release all tasks in :meth:`join`."""
        if not self._alone.done():
            self._alone.set_result(None)
        self._alone = self._loop.create_future()

    async def _wait_for(self, others: set[asyncio.Task[None]], until: float | None) -> bool:
        """Wait until each of these tasks has ended or joined; return ``False`` after the time ``until``."""
        self._others = others
        self._settled = self._loop.create_future()
        # They may be many and end one by one, so each gets a callback instead of a scan of all.
        for task in others:
            task.add_done_callback(self._leave)
        try:
            timeout = None if until is None else max(0.0, until - self._loop.time())
            await asyncio.wait([self._settled], timeout=timeout)
            return not self._others
        finally:
            for task in self._others:
                task.remove_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._others.discard(task)
        if not self._others and not self._settled.done():
            self._settled.set_result(None)
