"""Takes events on an event loop, and calls the handler of broker notices.

Each iterating task has its own waker, and waits for it only when there are no events. No taken event is held across an
`await`, so a task that is cancelled loses none.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import threading
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from .._native import Sent
from ._broker import BrokerEvent
from ._log import Log

if TYPE_CHECKING:
    from .._native import Batch
    from ._engine import Engine

__all__ = ["NOT_AWAITED", "TIME_SLICE", "Notices", "dispose", "iterate", "must_be_awaited"]

# Seconds after which an iteration yields to the other tasks of the loop.
TIME_SLICE = 0.002

# The maximum number of events in a batch.
MAX_EVENTS = 1024

# The end of the log record for handlers that return an awaitable in a thread.
NOT_AWAITED = "a thread does not await it; coroutine functions run on an event loop, as with engine.serve()"


def must_be_awaited(result: object) -> bool:
    """Return whether a handler's result must be awaited. The result of `send` need not be."""
    return inspect.isawaitable(result) and not isinstance(result, Sent)


def dispose(result: Any) -> None:
    """Close or cancel an awaitable that will not be awaited."""
    for name in "close", "cancel":
        if callable(end := getattr(result, name, None)):
            end()
            return


class Notices:
    """Passes notices of the broker to its handler, one at a time and in order, in the thread or task that takes events.

    Args:
        engine: The engine.
        logger: Logs exceptions of the handler.
    """

    def __init__(self, engine: Engine, logger: Log) -> None:
        self._engine = engine
        self._logger = logger
        self._lock = threading.Lock()
        self._waiting: collections.deque[BrokerEvent] = collections.deque()
        # A thread or task is running the handler.
        self._busy = False
        # The error about an awaitable result was logged.
        self._refused = False

    def has_unhandled(self) -> bool:
        """Return whether there are notices, and no handler is running."""
        with self._lock:
            return self._fetch()

    def _fetch(self) -> bool:
        self._waiting.extend(BrokerEvent(*notice) for notice in self._engine._broker_notices())
        return bool(self._waiting) and not self._busy

    def _begin(self) -> BrokerEvent | None:
        with self._lock:
            if not self._fetch():
                return None
            self._busy = True
            return self._waiting.popleft()

    def _end(self) -> None:
        with self._lock:
            self._busy = False

    def _wake_another(self) -> None:
        # This task or thread will not handle the remaining notices, and all others may be waiting.
        if self._waiting:
            self._engine._wake_taker()

    def dispatch(self, handler: Callable[[BrokerEvent], Any] | None) -> bool:
        """Call the handler, if any, for each notice. Return whether there were notices."""
        any_handled = False
        try:
            while (event := self._begin()) is not None:
                any_handled = True
                try:
                    result = None if handler is None else handler(event)
                    if result is not None and must_be_awaited(result):
                        self._refuse(event, result)
                except Exception:
                    self._logger.exception("the handler of %r has failed", event)
                finally:
                    self._end()
        except BaseException:
            self._wake_another()
            raise
        return any_handled

    def _refuse(self, event: BrokerEvent, result: Any) -> None:
        if not self._refused:
            self._refused = True
            self._logger.error("the handler of %r has returned %r: %s", event, result, NOT_AWAITED)
        dispose(result)

    async def dispatch_async(self, handler: Callable[[BrokerEvent], Any] | None) -> None:
        """Call the handler for each notice, and await its results."""
        try:
            while (event := self._begin()) is not None:
                try:
                    if handler is not None:
                        result = handler(event)
                        if inspect.isawaitable(result):
                            await result
                except Exception:
                    self._logger.exception("the handler of %r has failed", event)
                finally:
                    self._end()
        except BaseException:
            self._wake_another()
            raise


async def iterate(
    engine: Engine, notices: Notices | None, handler: Callable[[], Callable[[BrokerEvent], Any] | None]
) -> AsyncGenerator[Batch, None]:
    """Iterate over batches of events until the engine is stopped.

    Args:
        engine: The engine.
        notices: Its broker notices, if it has a broker.
        handler: Returns the current handler of notices.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    # Closed explicitly, as a traceback may keep this generator alive: a notification might be lost to its waker.
    with contextlib.closing(engine._events_waker()) as waker:

        def wake() -> None:
            waker.clear()
            ready.set()

        loop.add_reader(waker.fileno(), wake)
        turned = loop.time()
        try:
            while True:
                if notices is not None:
                    await notices.dispatch_async(handler())
                # There is no `await` between here and the `yield`.
                batch = engine._take(MAX_EVENTS, 0)
                if batch is None:
                    return
                if batch:
                    yield batch
                    del batch  # released before the next wait
                    if loop.time() - turned > TIME_SLICE:
                        # Under load, nothing in this loop waits, but the event loop has other tasks.
                        await asyncio.sleep(0)
                        turned = loop.time()
                    continue
                # Notices end the wait of any task, possibly of this one.
                if notices is not None and notices.has_unhandled():
                    continue
                ready.clear()
                if waker.wait():
                    await ready.wait()
                    turned = loop.time()
        finally:
            loop.remove_reader(waker.fileno())
