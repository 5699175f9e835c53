"""The tasks of a server that closes: who waits for them, from outside or as one of them."""

from __future__ import annotations

import asyncio

__all__ = ["TaskDrain"]


class TaskDrain:
    """The tasks of a server, and those among them that wait for its end.

    Args:
        loop: The event loop.
        tasks: Those of the server. Whoever has ended is taken out, sooner or later.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[None]]) -> None:
        self._loop = loop
        self._tasks = tasks
        # In :meth:`join`, and what lets them go on.
        self._joined: set[asyncio.Task[None]] = set()
        self._alone = loop.create_future()
        # Waited for in :meth:`ended`, and what tells that there are none.
        self._others: set[asyncio.Task[None]] = set()
        self._settled = loop.create_future()

    async def join(self, task: asyncio.Task[None]) -> None:
        """Wait, as one of the tasks, until all have ended but those that wait here; the server closes by then.

        Args:
            task: The current one.
        """
        self._joined.add(task)
        self._leave(task)
        try:
            await asyncio.shield(self._alone)
        finally:
            self._joined.discard(task)

    async def ended(self, until: float | None = None) -> bool:
        """Wait until all have ended. Those that have joined are told when there are no others.

        Args:
            until: Time of the loop at which to give up, ``None`` for never.

        Returns:
            Whether they have.
        """
        # One that was cancelled before its first step has taken nothing out.
        while tasks := {task for task in self._tasks if not task.done()}:
            others = tasks - self._joined
            if not others:
                self.release()
                others = tasks
            if not await self._wait_for(others, until):
                return False
        return True

    def release(self) -> None:
        """Let all go on that have joined."""
        if not self._alone.done():
            self._alone.set_result(None)
        self._alone = self._loop.create_future()

    async def _wait_for(self, others: set[asyncio.Task[None]], until: float | None) -> bool:
        """Wait until each of these has ended or joined; ``False`` if that takes too long."""
        self._others = others
        self._settled = self._loop.create_future()
        # They may be many, and end one by one: a callback for each, and not a list of them each time.
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
