"""Waits on an event loop for send capacity.

Owns one descriptor for each engine or publisher and event loop, which native threads make readable when there may be
capacity. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._native import CapacityWaker, NativeEngine, NativePublisher, Session

__all__ = ["wait_for_engine", "wait_for_publisher", "wait_for_session"]


class _CapacityWatch:
    """The waiters of one event loop for one engine or publisher."""

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
