"""Who is called for what happens: in the order of each session, as many at once as are allowed.

It takes events by the batch and gives each session a lane: what is called for one session is called one after the
other, what is called for different ones need not be. While as much is under way as may be, no events are taken, so the
engine stops reading.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import inspect
import logging
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._native import Connected, Message, Session

if TYPE_CHECKING:
    from ._engine import Event

__all__ = ["Handlers", "Lanes", "Pool"]

# RFC 6455 7.4.1, 1011: "a server is terminating the connection because it encountered an unexpected condition".
INTERNAL_ERROR = 1011

# Python 3.12 runs a task to its first suspension at once: most handlers never suspend.
EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class Handlers:
    """The functions of an application, each for one kind of event.

    Attributes:
        connect: Called with a session.
        message: Called with a session and a message.
        disconnect: Called with a session, the close code and the reason.
    """

    def __init__(self) -> None:
        self.connect: Callable[[Session], Any] | None = None
        self.message: Callable[[Session, Any], Any] | None = None
        self.disconnect: Callable[[Session, int, str], Any] | None = None

    def set(self, name: str, handler: Callable[..., Any]) -> None:
        """Set one.

        Raises:
            RuntimeError: There is one already.
            TypeError: It cannot be called.
        """
        if not callable(handler):
            raise TypeError(f"on_{name} needs a function, not {type(handler).__name__}")
        if getattr(self, name) is not None:
            raise RuntimeError(f"on_{name} has a handler already")
        setattr(self, name, handler)

    def __bool__(self) -> bool:
        return any((self.connect, self.message, self.disconnect))

    @property
    def awaits(self) -> bool:
        """Whether any of them is a coroutine function."""
        return any(inspect.iscoroutinefunction(handler) for handler in (self.connect, self.message, self.disconnect))

    def call(self, event: Event) -> Any:
        """Call the one for an event; what it returns, which may be to be awaited."""
        if isinstance(event, Message):
            return None if self.message is None else self.message(event.session, event.data)
        if isinstance(event, Connected):
            return None if self.connect is None else self.connect(event.session)
        return None if self.disconnect is None else self.disconnect(event.session, event.code, event.reason)


def failed(logger: logging.Logger, event: Event) -> None:
    """Say that a handler has raised, and end its session."""
    logger.exception("the handler of %s for %r has failed", type(event).__name__, event.session)
    event.session.close(INTERNAL_ERROR, "internal error")


class Lanes:
    """Handlers on an event loop.

    Args:
        handlers: Who is called.
        logger: Where failures are said.
        most: Handlers that may be under way, and events that may wait for them.
    """

    def __init__(self, handlers: Handlers, logger: logging.Logger, most: int) -> None:
        self._handlers = handlers
        self._logger = logger
        self._most = most
        self._loop = asyncio.get_running_loop()
        # Of sessions whose handler is under way: what comes next.
        self._lanes: dict[Session, collections.deque[Event]] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()

    async def handle(self, batch: list[Event]) -> None:
        """Handle a batch; return when there is room for another."""
        for event in batch:
            lane = self._lanes.get(event.session)
            if lane is not None:
                lane.append(event)
                self._waiting += 1
                continue
            try:
                pending = self._handlers.call(event)
            except Exception:
                failed(self._logger, event)
                continue
            if pending is not None and inspect.isawaitable(pending):
                self._begin(event, pending)
        while len(self._lanes) + self._waiting >= self._most:
            self._room.clear()
            await self._room.wait()

    def _begin(self, event: Event, pending: Any) -> None:
        self._lanes[event.session] = collections.deque()
        task = asyncio.Task(self._go_on(event, pending), loop=self._loop, **EAGER)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _go_on(self, event: Event, pending: Any) -> None:
        lane = self._lanes[event.session]
        try:
            while True:
                try:
                    if pending is not None and inspect.isawaitable(pending):
                        await pending
                except Exception:
                    failed(self._logger, event)
                if not lane:
                    return
                event = lane.popleft()
                self._waiting -= 1
                self._look_for_room()
                pending = None
                try:
                    pending = self._handlers.call(event)
                except Exception:
                    failed(self._logger, event)
        finally:
            # Cancelled, what waits behind it is not handled either.
            self._waiting -= len(lane)
            del self._lanes[event.session]
            self._look_for_room()

    def _look_for_room(self) -> None:
        if len(self._lanes) + self._waiting < self._most:
            self._room.set()

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def cancel(self) -> None:
        """Cancel what is under way, and wait for it."""
        for task in self._tasks:
            task.cancel()
        await self.finish()


class Pool:
    """Handlers on threads, or on the caller's.

    Args:
        handlers: Who is called; none of them a coroutine function.
        logger: Where failures are said.
        threads: How many; 0: the caller calls them.
    """

    def __init__(self, handlers: Handlers, logger: logging.Logger, threads: int) -> None:
        self._handlers = handlers
        self._logger = logger
        self._lanes: dict[Session, collections.deque[Event]] = {}
        self._lock = threading.Lock()
        # So that a slow handler stops the reading, and not the memory.
        self._room = threading.Semaphore(max(64 * threads, 1))
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, "wirespeed-handler") if threads else None

    def handle(self, batch: list[Event]) -> None:
        """Handle a batch; return when there is room for another."""
        if self._executor is None:
            for event in batch:
                self._call(event)
            return
        for event in batch:
            self._room.acquire()
            with self._lock:
                lane = self._lanes.get(event.session)
                if lane is not None:
                    lane.append(event)
                    continue
                self._lanes[event.session] = collections.deque()
            self._executor.submit(self._go_on, event)

    def _call(self, event: Event) -> None:
        try:
            self._handlers.call(event)
        except Exception:
            failed(self._logger, event)

    def _go_on(self, event: Event) -> None:
        while True:
            self._call(event)
            self._room.release()
            with self._lock:
                lane = self._lanes[event.session]
                if not lane:
                    del self._lanes[event.session]
                    return
                event = lane.popleft()

    def finish(self) -> None:
        """Wait for what is under way."""
        if self._executor is not None:
            self._executor.shutdown()
