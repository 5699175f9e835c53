"""Taking events on an event loop, and telling what has happened to the broker.

Each task that iterates has a bell of its own, and waits for it only when nothing is there. Nothing that was taken is
kept over an `await`, so a task that is cancelled takes nothing with it.
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

__all__ = ["NOBODY_AWAITS", "TURN", "Notices", "dispose", "is_to_be_awaited", "iterate"]

# Seconds after which an event loop has a turn, whatever else there is to handle.
TURN = 0.002

# Events of one batch, at most.
MOST = 1024


NOBODY_AWAITS = "nobody awaits it in a thread; a coroutine function would run on an event loop, as with engine.serve()"


def is_to_be_awaited(result: object) -> bool:
    """Whether what a handler has returned is lost unless it is awaited: not so with what `send` returns."""
    return inspect.isawaitable(result) and not isinstance(result, Sent)


def dispose(result: Any) -> None:
    """Have something that nobody will await come to its end."""
    for name in "close", "cancel":
        if callable(end := getattr(result, name, None)):
            end()
            return


class Notices:
    """What has happened to the broker: told one after the other, in order, by whoever takes events.

    Args:
        engine: Whose broker.
        logger: Where failures of the handler are said.
    """

    def __init__(self, engine: Engine, logger: Log) -> None:
        self._engine = engine
        self._logger = logger
        self._lock = threading.Lock()
        self._waiting: collections.deque[BrokerEvent] = collections.deque()
        # Somebody tells one.
        self._busy = False
        # It was said that the handler returns what nobody awaits.
        self._refused = False

    def wait_to_be_told(self) -> bool:
        """Whether there are any, and nobody tells them."""
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

    def _pass_on(self) -> None:
        # Whoever would have told the rest does not: others may be asleep.
        if self._waiting:
            self._engine._ring()

    def tell(self, handler: Callable[[BrokerEvent], Any] | None) -> bool:
        """Call the handler, if there is one, for each; whether there were any."""
        any_told = False
        try:
            while (event := self._begin()) is not None:
                any_told = True
                try:
                    result = None if handler is None else handler(event)
                    if result is not None and is_to_be_awaited(result):
                        self._refuse(event, result)
                except Exception:
                    self._logger.exception("the handler of %r has failed", event)
                finally:
                    self._end()
        except BaseException:
            self._pass_on()
            raise
        return any_told

    def _refuse(self, event: BrokerEvent, result: Any) -> None:
        if not self._refused:
            self._refused = True
            self._logger.error("the handler of %r has returned %r: %s", event, result, NOBODY_AWAITS)
        dispose(result)

    async def tell_and_wait(self, handler: Callable[[BrokerEvent], Any] | None) -> None:
        """Do the same, and await what the handler returns."""
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
            self._pass_on()
            raise


async def iterate(
    engine: Engine, notices: Notices | None, handler: Callable[[], Callable[[BrokerEvent], Any] | None]
) -> AsyncGenerator[Batch, None]:
    """Iterate over what happens, until the engine is stopped.

    Args:
        engine: Where.
        notices: What happens to its broker, if it has one.
        handler: Returns who is told of that.
    """
    loop = asyncio.get_running_loop()
    rung = asyncio.Event()
    # Closed, though whatever has ended this be kept: else a wake-up of the others might go to it.
    with contextlib.closing(engine._events_bell()) as bell:

        def wake() -> None:
            bell.silence()
            rung.set()

        loop.add_reader(bell.fileno(), wake)
        turned = loop.time()
        try:
            while True:
                if notices is not None:
                    await notices.tell_and_wait(handler())
                # From here on to `yield` nothing is awaited.
                batch = engine._take(MOST, 0)
                if batch is None:
                    return
                if batch:
                    yield batch
                    del batch  # nothing of it is kept while waiting
                    if loop.time() - turned > TURN:
                        # Under a flood nothing here waits for anything else, and the loop has others.
                        await asyncio.sleep(0)
                        turned = loop.time()
                    continue
                # They end the wait of whoever takes, who may have been this one.
                if notices is not None and notices.wait_to_be_told():
                    continue
                rung.clear()
                if bell.wait():
                    await rung.wait()
                    turned = loop.time()
        finally:
            loop.remove_reader(bell.fileno())
