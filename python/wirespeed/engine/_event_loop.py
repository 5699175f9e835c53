"""Waits on an event loop: for events, and for send capacity.

Native threads make a descriptor readable when there may be events or capacity. No taken event is held across an
`await`, so a task that is cancelled loses none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._native import Batch, CapacityWaker, NativeEngine, NativePublisher, Session
    from ._broker import BrokerEvent, Notices
    from ._engine import Engine

__all__ = ["TIME_SLICE", "iterate", "wait_for_engine", "wait_for_publisher", "wait_for_session"]

# Seconds after which an iteration yields to the other tasks of the loop.
TIME_SLICE = 0.002

# The maximum number of events in a batch.
MAX_EVENTS = 1024


async def iterate(
    engine: Engine, notices: Notices | None, handler: Callable[[], Callable[[BrokerEvent], Any] | None]
) -> AsyncGenerator[Batch, None]:
    """Iterate over batches of events until the engine is stopped.

    Each iterating task has its own waker, and waits for it only when there are no events.

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


class _CapacityWatch:
    """The waiters of one event loop for one engine or publisher, and the descriptor that they share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, waker: CapacityWaker) -> None:
        self._waker = waker
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        try:
            loop.add_reader(waker.fileno(), self._check)
        except BaseException:
            waker.close()
            raise

    def add(self, waiter: asyncio.Future[bool], predicate: Callable[[], bool]) -> None:
        self._waiting[waiter] = predicate

    def discard(self, waiter: asyncio.Future[bool]) -> bool:
        """Remove a waiter. Return whether none is left."""
        self._waiting.pop(waiter, None)
        return not self._waiting

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        # Closed explicitly, as a traceback may keep this object alive.
        with contextlib.closing(self._waker):
            loop.remove_reader(self._waker.fileno())

    def _check(self) -> None:
        # Cleared before the checks: later changes make it readable again.
        self._waker.clear()
        for waiter, predicate in list(self._waiting.items()):
            if waiter.done():
                continue
            try:
                if predicate():
                    waiter.set_result(True)
            except Exception as error:
                waiter.set_exception(error)


_watches: dict[tuple[int, asyncio.AbstractEventLoop], _CapacityWatch] = {}


async def _wait(of: NativeEngine | NativePublisher | Session, predicate: Callable[[], bool]) -> bool:
    if predicate():
        return True
    loop = asyncio.get_running_loop()
    # A watch keeps the native object alive that the key identifies, so the key stays unique.
    key = (of._capacity_key(), loop)
    watch = _watches.get(key)
    if watch is None:
        watch = _watches[key] = _CapacityWatch(loop, of._capacity_waker())
    waiter: asyncio.Future[bool] = loop.create_future()
    watch.add(waiter, predicate)
    try:
        # Capacity may have returned before the watch existed.
        return predicate() or await waiter
    finally:
        if watch.discard(waiter) and _watches.get(key) is watch:
            del _watches[key]
            watch.close(loop)


async def wait_for_engine(engine: NativeEngine, topic: str | None) -> bool:
    """Wait until an engine has capacity for messages to a topic or, without one, to all sessions."""
    return await _wait(engine, lambda: engine.has_room(topic))


async def wait_for_publisher(publisher: NativePublisher, predicate: Callable[[], bool]) -> None:
    """Wait until a predicate is true. It is checked when the queue has capacity, and when messages are settled."""
    await _wait(publisher, predicate)


async def wait_for_session(session: Session) -> bool:
    """Wait until a session has capacity. False: it has ended."""
    await _wait(session, lambda: session.has_room or not session.is_open)
    return session.is_open
