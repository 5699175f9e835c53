"""Waiting on an event loop until there is room for what is sent.

Owns, for each engine and event loop on which anybody waits, one descriptor that the engine's threads make readable when
there may be room. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._native import NativeEngine, NativePublisher, RoomBell, Session

__all__ = ["wait_for_engine", "wait_for_publisher", "wait_for_session"]


class _Watch:
    """Those who wait on one loop for one engine or its sessions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bell: RoomBell) -> None:
        self._bell = bell
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        try:
            loop.add_reader(bell.fileno(), self._look)
        except BaseException:
            bell.close()
            raise

    def add(self, waiter: asyncio.Future[bool], look: Callable[[], bool]) -> None:
        self._waiting[waiter] = look

    def discard(self, waiter: asyncio.Future[bool]) -> bool:
        """Forget one; whether nobody is left."""
        self._waiting.pop(waiter, None)
        return not self._waiting

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        # Closed, though whatever has ended the wait be kept.
        with contextlib.closing(self._bell):
            loop.remove_reader(self._bell.fileno())

    def _look(self) -> None:
        # Before looking: what changes afterwards rings again.
        self._bell.silence()
        for waiter, look in list(self._waiting.items()):
            if waiter.done():
                continue
            try:
                if look():
                    waiter.set_result(True)
            except Exception as error:
                waiter.set_exception(error)


_watches: dict[tuple[int, asyncio.AbstractEventLoop], _Watch] = {}


async def _wait(of: NativeEngine | NativePublisher | Session, look: Callable[[], bool]) -> bool:
    if look():
        return True
    loop = asyncio.get_running_loop()
    # The bell of a watch keeps the engine's room, so nothing else has its number while the watch is there.
    key = (of._room_key(), loop)
    watch = _watches.get(key)
    if watch is None:
        watch = _watches[key] = _Watch(loop, of._room_bell())
    waiter: asyncio.Future[bool] = loop.create_future()
    watch.add(waiter, look)
    try:
        # There may have been room before the bell was there.
        return look() or await waiter
    finally:
        if watch.discard(waiter) and _watches.get(key) is watch:
            del _watches[key]
            watch.close(loop)


async def wait_for_engine(engine: NativeEngine, topic: str | None) -> bool:
    """Wait until an engine has room for what is published to a topic, or sent to everybody."""
    return await _wait(engine, lambda: engine.has_room(topic))


async def wait_for_publisher(publisher: NativePublisher, look: Callable[[], bool]) -> None:
    """Wait until ``look`` returns true; it is called when the queue has room, and when a message is settled."""
    await _wait(publisher, look)


async def wait_for_session(session: Session) -> bool:
    """Wait until a session has room; false: it is over."""
    await _wait(session, lambda: session.has_room or not session.is_open)
    return session.is_open
