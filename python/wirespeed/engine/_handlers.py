"""Who is called for what happens: in the order of each session, as many at once as are allowed.

It takes events by the batch and gives each session a lane: what is called for one session is called one after the
other, what is called for different ones need not be. While as much is under way as may be, no events are taken, so the
engine stops reading.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import inspect
import queue
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from .._native import Connected, Invalid, Message, Sent, Session, Undecoded
from ..exceptions import InvalidState
from ._iteration import NOBODY_AWAITS, TURN, dispose, is_to_be_awaited
from ._log import Log

if TYPE_CHECKING:
    from typing import TypeAlias

    from .._native import Batch
    from ._broker import BrokerEvent
    from ._engine import Event

    # Of a message that is handled later its codec makes something when its turn has come.
    Due: TypeAlias = Event | Undecoded

__all__ = ["Handlers", "SessionQueues", "ThreadDispatcher", "is_coroutine_function"]

# RFC 6455 7.4.1, 1011: "a server is terminating the connection because it encountered an unexpected condition".
INTERNAL_ERROR = 1011

# Events of one session that may wait behind its handler, at most: then it is not read.
MOST_OF_ONE = 256

# The same in bytes of their messages, and of all sessions together.
MOST_BYTES_OF_ONE = 2**20
MOST_BYTES_OF_ALL = 2**26

# Python 3.12 runs a task to its first suspension at once: most handlers never suspend.
EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


def is_coroutine_function(handler: object) -> bool:
    """Whether what is called is a coroutine function, or is said to be one.

    Methods and ``functools.partial`` are what they are made of, and an object what its ``__call__`` is.
    """
    while isinstance(handler, functools.partial):
        handler = handler.func
    return _is_marked(handler) or _is_marked(type(handler).__call__)


def _is_marked(function: Any) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    # As those did it who had no `inspect.markcoroutinefunction`; that of asyncio is deprecated where there is one.
    return sys.version_info < (3, 12) and asyncio.iscoroutinefunction(function)


class Handlers:
    """The functions of an application, each for one kind of event.

    Attributes:
        connect: Called with a session.
        message: Called with a session and a message.
        invalid: Called with a session, a message that its codec does not understand, and why.
        disconnect: Called with a session, the close code and the reason.
        broker: Called with what happens to the broker.
    """

    def __init__(self) -> None:
        self.connect: Callable[[Session], Any] | None = None
        self.message: Callable[[Session, Any], Any] | None = None
        self.invalid: Callable[[Session, str | bytes, str], Any] | None = None
        self.disconnect: Callable[[Session, int, str], Any] | None = None
        self.broker: Callable[[BrokerEvent], Any] | None = None

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
        return any((self.connect, self.message, self.invalid, self.disconnect))

    @property
    def awaits(self) -> bool:
        """Whether any of them is a coroutine function."""
        handlers = (self.connect, self.message, self.invalid, self.disconnect, self.broker)
        return any(is_coroutine_function(handler) for handler in handlers)

    def call(self, event: Event) -> Any:
        """Call the one for an event; what it returns, which may be to be awaited."""
        if type(event) is Message:  # they have no subclasses
            return None if self.message is None else self.message(event.session, event.data)
        if type(event) is Connected:
            return None if self.connect is None else self.connect(event.session)
        if type(event) is Invalid:
            return None if self.invalid is None else self.invalid(event.session, event.data, event.error)
        return None if self.disconnect is None else self.disconnect(event.session, event.code, event.reason)


def failed(logger: Log, event: Due) -> None:
    """Say that a handler has raised, and end its session."""
    kind = Message.__name__ if type(event) is Undecoded else type(event).__name__
    if isinstance(sys.exc_info()[1], InvalidState) and not event.session.is_open:
        # It has sent to a client that left meanwhile: any may do so, at any time.
        logger.debug("%r ended before the handler of %s", event.session, kind)
        return
    logger.exception("the handler of %s for %r has failed", kind, event.session)
    event.session.close(INTERNAL_ERROR, "internal error")


async def wait_for(pending: Awaitable[Any]) -> None:
    """Await something that is no coroutine."""
    await pending


def size_of(event: Due) -> int:
    """Bytes of memory that its message takes."""
    return sys.getsizeof(event.data) if isinstance(event, (Message, Undecoded)) else 0


def decoded(event: Due) -> Event:
    """What has happened, once its turn has come."""
    return event.decode() if type(event) is Undecoded else event


@dataclasses.dataclass
class Waiting:
    """What waits behind the handlers of all sessions."""

    # Of their messages.
    bytes: int = 0


class SessionQueue(collections.deque["Due"]):
    """What comes next for a session whose handler is under way.

    A session of which more waits than its share is no longer read, and what waits does not count among what is due: a
    handler that is slow, or never returns, holds up its own client only.

    Args:
        waiting: What waits for all sessions, of which this is a part.

    Attributes:
        stopped: The session is not read at present.
    """

    stopped = False
    # How many may wait when it is read again.
    _rest = 0
    # Of the messages that wait.
    _bytes = 0

    def __init__(self, waiting: Waiting) -> None:
        super().__init__()
        self._of_all = waiting

    def add(self, event: Due, share: int) -> int:
        """Add an event; by how many more is due."""
        self.append(event)
        size = size_of(event)
        self._bytes += size
        self._of_all.bytes += size
        if self.stopped:
            return 0
        is_full = len(self) >= share or self._bytes >= MOST_BYTES_OF_ONE or self._of_all.bytes >= MOST_BYTES_OF_ALL
        return 1 + self.stop(event.session) if is_full else 1

    def stop(self, session: Session) -> int:
        """Have its session not read until half of what waits is done; by how many more is due."""
        self.stopped = True
        self._rest = len(self) // 2
        session._set_reading(False)
        return -len(self)

    def take(self) -> tuple[Due, int]:
        """Take the next event; by how many more is due."""
        event = self.popleft()
        size = size_of(event)
        self._bytes -= size
        self._of_all.bytes -= size
        if not self.stopped:
            return event, -1
        if len(self) > self._rest or self._bytes > MOST_BYTES_OF_ONE // 2:
            return event, 0
        self.stopped = False
        event.session._set_reading(True)
        return event, len(self)


class SessionQueues:
    """Handlers on an event loop.

    Args:
        handlers: Who is called.
        logger: Where failures are said.
        most: Handlers that may be under way. With more events that wait for them, the sessions of which most wait are
            not read.
    """

    def __init__(self, handlers: Handlers, logger: Log, most: int) -> None:
        self._handlers = handlers
        self._logger = logger
        self._most = most
        self._share = max(1, min(MOST_OF_ONE, most // 4))
        self._loop = asyncio.get_running_loop()
        # Of sessions whose handler is under way: what comes next, if anything does.
        self._lanes: dict[Session, SessionQueue | None] = {}
        self._in_lanes = Waiting()
        # Events in lanes whose sessions are read.
        self._waiting = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._room = asyncio.Event()
        # Who is cancelled is to end.
        self._over = False

    async def handle(self, batch: Batch) -> None:
        """Handle a batch; return when all of it is under way or due."""
        due = time.monotonic() + TURN
        for event in batch._undecoded():
            if time.monotonic() > due:
                # Handlers that do not wait leave the loop no turn; there are others that want one.
                await asyncio.sleep(0)
                due = time.monotonic() + TURN
            # The end of an engine waits for no handlers.
            while not self._over and len(self._lanes) + self._waiting >= self._most:
                if not self._stop_fullest():
                    self._room.clear()
                    await self._room.wait()
            if self._over:
                return
            session = event.session
            if session not in self._lanes:
                self._begin(event)
                continue
            lane = self._lanes[session]
            if lane is None:
                lane = self._lanes[session] = SessionQueue(self._in_lanes)
            self._waiting += lane.add(event, self._share)

    def _stop_fullest(self) -> bool:
        """Have the sessions of which most waits not read, as many as have half of it; false: nothing waits.

        So whoever's handler never returns holds up nobody else, however little waits behind it.
        """
        lanes = [(session, lane) for session, lane in self._lanes.items() if lane and not lane.stopped]
        lanes.sort(key=lambda one: len(one[1]), reverse=True)
        left = self._waiting // 2
        for session, lane in lanes:
            self._waiting += lane.stop(session)
            if self._waiting <= left:
                break
        return bool(lanes)

    def _call(self, event: Event) -> Coroutine[Any, Any, Any] | None:
        """Call the handler; what is to be awaited."""
        try:
            pending = self._handlers.call(event)
        except (Exception, asyncio.CancelledError):
            failed(self._logger, event)
            return None
        if type(pending) is CoroutineType:
            return pending
        if pending is None or (isinstance(pending, Sent) and pending) or not inspect.isawaitable(pending):
            return None
        return wait_for(pending)

    def _begin(self, due: Due) -> bool:
        """Call the handler; whether it is under way afterwards.

        What it awaits runs in a task, with a context of its own, which `asyncio.timeout` and others may cancel.
        """
        event = decoded(due)
        pending = self._call(event)
        if pending is None:
            return False
        task: asyncio.Task[Any] = asyncio.Task(
            pending if EAGER else self._all(event, pending), loop=self._loop, **EAGER
        )
        if task.done():
            self._look_at(event, task)
            return False
        self._lanes.setdefault(event.session, None)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._go_on, event))
        return True

    async def _all(self, event: Event, pending: Coroutine[Any, Any, Any]) -> None:
        """Await what a handler has returned, and what those return that are called for what comes next.

        Where each task costs a turn of the loop, one does for all that waits for a session: they share its context.
        """
        while True:
            try:
                await pending
            except asyncio.CancelledError:
                if self._over:
                    raise
                failed(self._logger, event)
                # It was meant for the handler, not for those behind it.
                if sys.version_info >= (3, 11) and (task := asyncio.current_task()) is not None:
                    while task.cancelling():
                        task.uncancel()
            except Exception:
                failed(self._logger, event)
            following: Coroutine[Any, Any, Any] | None = None
            while following is None:
                lane = self._lanes[event.session]
                if not lane:
                    return
                due, change = lane.take()
                self._waiting += change
                self._look_for_room()
                event = decoded(due)
                following = self._call(event)
            pending = following

    def _look_at(self, event: Event, task: asyncio.Task[Any]) -> None:
        try:
            task.result()
        except (KeyboardInterrupt, SystemExit):
            pass  # the loop has raised it
        except asyncio.CancelledError:
            # Of something that it has awaited, or by somebody else: for those behind it that is a failure.
            if not self._over:
                failed(self._logger, event)
        except BaseException:
            failed(self._logger, event)

    def _go_on(self, event: Event, task: asyncio.Task[Any]) -> None:
        """The handler of a session has ended: call it for what comes next."""
        self._tasks.discard(task)
        self._look_at(event, task)
        lane = self._lanes[event.session]
        # Cancelled, what waits behind it is not handled either.
        while lane and not self._over:
            due, change = lane.take()
            self._waiting += change
            if self._begin(due):
                self._look_for_room()
                return
        self._waiting -= len(lane) if lane and not lane.stopped else 0
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
        self._give_up()
        await self.finish()

    def end_at(self, at: float) -> None:
        """Cancel, at a moment of the monotonic clock, what is under way then; nothing more is handled."""
        self._loop.call_later(max(at - time.monotonic(), 0), self._leave)

    def _leave(self) -> None:
        if self._tasks:
            self._logger.error("%d handlers have not returned in time: they are cancelled", len(self._tasks))
        self._give_up()

    def _give_up(self) -> None:
        self._over = True
        self._room.set()
        for task in self._tasks:
            task.cancel()


class ThreadDispatcher:
    """Handlers on threads, or on the caller's.

    Args:
        handlers: Who is called; none of them a coroutine function.
        logger: Where failures are said.
        threads: How many; 0: the caller calls them.
    """

    def __init__(self, handlers: Handlers, logger: Log, threads: int) -> None:
        self._handlers = handlers
        self._logger = logger
        self._lanes: dict[Session, SessionQueue] = {}
        self._in_lanes = Waiting()
        # Events that are due, but for those of sessions that are not read: so that slow handlers stop the reading.
        self._due = 0
        self._most = 64 * threads
        self._share = 16
        self._room = threading.Condition()
        # First events of sessions, for whichever thread comes first; nothing: it ends.
        self._begun: queue.SimpleQueue[Due | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._most_threads = threads
        # Threads that wait for one.
        self._idle = 0
        # When nothing is waited for any more.
        self._end: float | None = None
        # Kinds of events whose handlers have returned something to be awaited.
        self._refused: set[str] = set()

    def handle(self, batch: Batch) -> None:
        """Handle a batch; return when there is room for another."""
        if not self._most_threads:
            for event in batch:
                self._call(event)
            return
        for due in batch._undecoded():
            with self._room:
                if not self._wait(lambda: self._due < self._most):
                    return
                lane = self._lanes.get(due.session)
                if lane is not None:
                    self._due += lane.add(due, self._share)
                    continue
                self._lanes[due.session] = SessionQueue(self._in_lanes)
                self._due += 1
                self._begin_thread()
            self._begun.put(due)

    def _begin_thread(self) -> None:
        if self._idle:
            self._idle -= 1
        elif len(self._threads) < self._most_threads:
            name = f"wirespeed-handler_{len(self._threads)}"
            # No thread that the interpreter waits for: a handler may never return.
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (event := self._begun.get()) is not None:
            self._go_on(event)
            with self._room:
                self._idle += 1

    def _wait(self, ready: Callable[[], bool]) -> bool:
        """Wait for something, with the lock; false: the end has come before."""
        while not ready():
            left = None if self._end is None else self._end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._room.wait(left)
        return True

    def end_at(self, at: float) -> None:
        """Wait for nothing from a moment of the monotonic clock on. For any thread."""
        with self._room:
            self._end = at
            self._room.notify_all()

    def _call(self, event: Event) -> None:
        try:
            result = self._handlers.call(event)
            if result is not None and is_to_be_awaited(result):
                self._refuse(event, result)
        except Exception:
            failed(self._logger, event)

    def _refuse(self, event: Event, result: Any) -> None:
        kind = type(event).__name__
        if kind not in self._refused:
            self._refused.add(kind)
            self._logger.error("the handler of %s has returned %r: %s", kind, result, NOBODY_AWAITS)
        dispose(result)
        event.session.close(INTERNAL_ERROR, "internal error")

    def _go_on(self, due: Due) -> None:
        while True:
            try:
                self._call(decoded(due))
            except BaseException:
                # The thread goes on: `sys.exit()` ends no thread but the main one.
                failed(self._logger, due)
            with self._room:
                lane = self._lanes[due.session]
                if not lane:
                    del self._lanes[due.session]
                    self._due -= 1
                    self._room.notify()
                    return
                # It counts for what was handled.
                due, change = lane.take()
                self._due += change
                self._room.notify()

    def finish(self) -> None:
        """Wait for what is under way."""
        with self._room:
            ended = self._wait(lambda: not self._lanes)
            if not ended:
                self._logger.error("handlers of %d sessions have not returned in time", len(self._lanes))
        for _ in self._threads:
            self._begun.put(None)
        if ended:
            for thread in self._threads:
                thread.join()
