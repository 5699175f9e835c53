"""Calls the handlers of an application, in order for each session, with limited concurrency.

Events are taken in batches and distributed to sessions: handlers of one session run one after the other, those of
different sessions may run concurrently. At the limit, no further events are taken, so that the engine stops reading.
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
from ._event_loop import TIME_SLICE
from ._log import Log

if TYPE_CHECKING:
    from typing import TypeAlias

    from .._native import Batch
    from ._broker import BrokerEvent
    from ._engine import Event

    # An event that is handled later. A message is decoded when its turn has come.
    QueuedEvent: TypeAlias = Event | Undecoded

__all__ = [
    "NOT_AWAITED",
    "Handlers",
    "SessionQueues",
    "ThreadDispatcher",
    "dispose",
    "is_coroutine_function",
    "must_be_awaited",
]

# RFC 6455 7.4.1, 1011: "a server is terminating the connection because it encountered an unexpected condition".
INTERNAL_ERROR = 1011

# The maximum number of events of one session that wait behind its handler. At the limit, the session is not read.
MAX_QUEUED_EVENTS = 256

# The same limit in bytes of messages, for one session and for all together.
MAX_QUEUED_BYTES = 2**20
MAX_TOTAL_BYTES = 2**26

# Python 3.12 runs a task up to its first suspension at once. Most handlers never suspend.
EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


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


def is_coroutine_function(handler: object) -> bool:
    """Return whether a callable is a coroutine function, or marked as one.

    Methods and ``functools.partial`` count as the wrapped function, and objects as their ``__call__``.
    """
    while isinstance(handler, functools.partial):
        handler = handler.func
    return _is_marked(handler) or _is_marked(type(handler).__call__)


def _is_marked(function: Any) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    # The mark before `inspect.markcoroutinefunction` existed; asyncio deprecates its own function since.
    return sys.version_info < (3, 12) and asyncio.iscoroutinefunction(function)


class Handlers:
    """The handlers of an application, one for each kind of event.

    Attributes:
        connect: Called with a session.
        message: Called with a session and a message.
        invalid: Called with a session, a message that its codec cannot decode, and the error.
        disconnect: Called with a session, the close code and the reason.
        broker: Called with a :class:`BrokerEvent`.
    """

    def __init__(self) -> None:
        self.connect: Callable[[Session], Any] | None = None
        self.message: Callable[[Session, Any], Any] | None = None
        self.invalid: Callable[[Session, str | bytes, str], Any] | None = None
        self.disconnect: Callable[[Session, int, str], Any] | None = None
        self.broker: Callable[[BrokerEvent], Any] | None = None

    def set(self, name: str, handler: Callable[..., Any]) -> None:
        """Set a handler.

        Raises:
            RuntimeError: There is one already.
            TypeError: It is not callable.
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
        """Whether any handler is a coroutine function."""
        handlers = (self.connect, self.message, self.invalid, self.disconnect, self.broker)
        return any(is_coroutine_function(handler) for handler in handlers)

    def call(self, event: Event) -> Any:
        """Call the handler for an event, and return its result, which may be awaitable."""
        if type(event) is Message:  # event classes have no subclasses
            return None if self.message is None else self.message(event.session, event.data)
        if type(event) is Connected:
            return None if self.connect is None else self.connect(event.session)
        if type(event) is Invalid:
            return None if self.invalid is None else self.invalid(event.session, event.data, event.error)
        return None if self.disconnect is None else self.disconnect(event.session, event.code, event.reason)


def log_handler_error(logger: Log, event: QueuedEvent) -> None:
    """Log the exception of a handler, and close its session."""
    kind = Message.__name__ if type(event) is Undecoded else type(event).__name__
    if isinstance(sys.exc_info()[1], InvalidState) and not event.session.is_open:
        # The client left before a send, which may happen at any time.
        logger.debug("%r ended before the handler of %s", event.session, kind)
        return
    logger.exception("the handler of %s for %r has failed", kind, event.session)
    event.session.close(INTERNAL_ERROR, "internal error")


async def await_result(pending: Awaitable[Any]) -> None:
    """Await an awaitable that is not a coroutine."""
    await pending


def size_of(event: QueuedEvent) -> int:
    """Return the memory of an event's message in bytes."""
    return sys.getsizeof(event.data) if isinstance(event, (Message, Undecoded)) else 0


def decoded(event: QueuedEvent) -> Event:
    """Return an event with its message decoded."""
    return event.decode() if type(event) is Undecoded else event


@dataclasses.dataclass
class QueuedTotals:
    """The events that wait behind the handlers of all sessions."""

    # The memory of their messages.
    bytes: int = 0


class SessionQueue(collections.deque["QueuedEvent"]):
    """The events that wait behind a running handler of one session.

    A session whose queue exceeds its share is no longer read, and its events do not count towards the limit of all: a
    handler that is slow, or never returns, delays only its own client.

    Args:
        totals: The totals of all sessions, which include this queue.

    Attributes:
        paused: Whether reading of the session is paused.
    """

    paused = False
    # The length at which reading resumes.
    _resume_length = 0
    # The memory of the waiting messages.
    _bytes = 0

    def __init__(self, totals: QueuedTotals) -> None:
        super().__init__()
        self._totals = totals

    def add(self, event: QueuedEvent, share: int) -> int:
        """Add an event. Return the change of the number of counted events."""
        self.append(event)
        size = size_of(event)
        self._bytes += size
        self._totals.bytes += size
        if self.paused:
            return 0
        is_full = len(self) >= share or self._bytes >= MAX_QUEUED_BYTES or self._totals.bytes >= MAX_TOTAL_BYTES
        return 1 + self.pause(event.session) if is_full else 1

    def pause(self, session: Session) -> int:
        """Pause reading until half of the queue is handled. Return the change of the number of counted events."""
        self.paused = True
        self._resume_length = len(self) // 2
        session._set_reading(False)
        return -len(self)

    def take(self) -> tuple[QueuedEvent, int]:
        """Take the next event. Return it, and the change of the number of counted events."""
        event = self.popleft()
        size = size_of(event)
        self._bytes -= size
        self._totals.bytes -= size
        if not self.paused:
            return event, -1
        if len(self) > self._resume_length or self._bytes > MAX_QUEUED_BYTES // 2:
            return event, 0
        self.paused = False
        event.session._set_reading(True)
        return event, len(self)


class SessionQueues:
    """Runs handlers on an event loop.

    Args:
        handlers: The handlers.
        logger: Logs their exceptions.
        max_running: The maximum number of running handlers. If more events wait for them, the sessions with the most
            waiting events are not read.
    """

    def __init__(self, handlers: Handlers, logger: Log, max_running: int) -> None:
        self._handlers = handlers
        self._logger = logger
        self._max_running = max_running
        self._max_queued = max(1, min(MAX_QUEUED_EVENTS, max_running // 4))
        self._loop = asyncio.get_running_loop()
        # The queues of sessions whose handler is running, or None while they are empty.
        self._queues: dict[Session, SessionQueue | None] = {}
        self._totals = QueuedTotals()
        # The number of queued events of sessions that are read.
        self._waiting = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._capacity = asyncio.Event()
        # Set once tasks are cancelled to end: no further event is handled.
        self._cancelled = False

    async def handle(self, batch: Batch) -> None:
        """Handle a batch. Return when all its events are running or queued."""
        due = time.monotonic() + TIME_SLICE
        for event in batch._undecoded():
            if time.monotonic() > due:
                # Handlers that never suspend would block the loop for its other tasks.
                await asyncio.sleep(0)
                due = time.monotonic() + TIME_SLICE
            # No limit applies while the engine ends, as nothing waits for handlers then.
            while not self._cancelled and len(self._queues) + self._waiting >= self._max_running:
                if not self._pause_longest():
                    self._capacity.clear()
                    await self._capacity.wait()
            if self._cancelled:
                return
            session = event.session
            if session not in self._queues:
                self._start(event)
                continue
            session_queue = self._queues[session]
            if session_queue is None:
                session_queue = self._queues[session] = SessionQueue(self._totals)
            self._waiting += session_queue.add(event, self._max_queued)

    def _pause_longest(self) -> bool:
        """Pause the sessions with the longest queues, which hold half of all queued events. False: none wait.

        Thus a handler that never returns delays no other session, however few events wait behind it.
        """
        queues = [(session, waiting) for session, waiting in self._queues.items() if waiting and not waiting.paused]
        queues.sort(key=lambda pair: len(pair[1]), reverse=True)
        left = self._waiting // 2
        for session, session_queue in queues:
            self._waiting += session_queue.pause(session)
            if self._waiting <= left:
                break
        return bool(queues)

    def _call(self, event: Event) -> Coroutine[Any, Any, Any] | None:
        """Call the handler, and return a coroutine to await, if any."""
        try:
            pending = self._handlers.call(event)
        except (Exception, asyncio.CancelledError):
            log_handler_error(self._logger, event)
            return None
        if type(pending) is CoroutineType:
            return pending
        if pending is None or (isinstance(pending, Sent) and pending) or not inspect.isawaitable(pending):
            return None
        return await_result(pending)

    def _start(self, due: QueuedEvent) -> bool:
        """Call the handler, and return whether it is still running.

        Its coroutine runs in a task with a context of its own, which `asyncio.timeout` and others may cancel.
        """
        event = decoded(due)
        pending = self._call(event)
        if pending is None:
            return False
        task: asyncio.Task[Any] = asyncio.Task(
            pending if EAGER else self._await_all(event, pending), loop=self._loop, **EAGER
        )
        if task.done():
            self._check_result(event, task)
            return False
        self._queues.setdefault(event.session, None)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._continue, event))
        return True

    async def _await_all(self, event: Event, pending: Coroutine[Any, Any, Any]) -> None:
        """Await a handler's coroutine, and then those of the events queued behind it.

        Without eager tasks, each task costs an iteration of the loop, so one task serves a whole queue. Its handlers
        share a context.
        """
        while True:
            try:
                await pending
            except asyncio.CancelledError:
                if self._cancelled:
                    raise
                log_handler_error(self._logger, event)
                # The cancellation was meant for this handler, not for the next ones.
                if sys.version_info >= (3, 11) and (task := asyncio.current_task()) is not None:
                    while task.cancelling():
                        task.uncancel()
            except Exception:
                log_handler_error(self._logger, event)
            following: Coroutine[Any, Any, Any] | None = None
            while following is None:
                session_queue = self._queues[event.session]
                if not session_queue:
                    return
                due, change = session_queue.take()
                self._waiting += change
                self._notify_capacity()
                event = decoded(due)
                following = self._call(event)
            pending = following

    def _check_result(self, event: Event, task: asyncio.Task[Any]) -> None:
        try:
            task.result()
        except (KeyboardInterrupt, SystemExit):
            pass  # the loop raises it
        except asyncio.CancelledError:
            # The handler, or code that it awaited, was cancelled. For the session that is a failure.
            if not self._cancelled:
                log_handler_error(self._logger, event)
        except BaseException:
            log_handler_error(self._logger, event)

    def _continue(self, event: Event, task: asyncio.Task[Any]) -> None:
        """Handle the next events of a session whose handler has ended."""
        self._tasks.discard(task)
        self._check_result(event, task)
        session_queue = self._queues[event.session]
        # After a cancellation, the queued events are not handled either.
        while session_queue and not self._cancelled:
            due, change = session_queue.take()
            self._waiting += change
            if self._start(due):
                self._notify_capacity()
                return
        self._waiting -= len(session_queue) if session_queue and not session_queue.paused else 0
        del self._queues[event.session]
        self._notify_capacity()

    def _notify_capacity(self) -> None:
        if len(self._queues) + self._waiting < self._max_running:
            self._capacity.set()

    async def finish(self) -> None:
        """Wait for the running handlers."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def cancel(self) -> None:
        """Cancel the running handlers, and wait for them."""
        self._cancel_all()
        await self.finish()

    def end_at(self, at: float) -> None:
        """Schedule the cancellation of running handlers, at a time of the monotonic clock."""
        self._loop.call_later(max(at - time.monotonic(), 0), self._cancel_late)

    def _cancel_late(self) -> None:
        if self._tasks:
            self._logger.error("%d handlers have not returned in time: they are cancelled", len(self._tasks))
        self._cancel_all()

    def _cancel_all(self) -> None:
        self._cancelled = True
        self._capacity.set()
        for task in self._tasks:
            task.cancel()


class ThreadDispatcher:
    """Runs handlers on threads, or on the caller's thread.

    Args:
        handlers: The handlers, none of them a coroutine function.
        logger: Logs their exceptions.
        threads: The number of threads; 0: the caller's thread runs them.
    """

    def __init__(self, handlers: Handlers, logger: Log, threads: int) -> None:
        self._handlers = handlers
        self._logger = logger
        self._queues: dict[Session, SessionQueue] = {}
        self._totals = QueuedTotals()
        # The number of running and queued events, except those of paused sessions: slow handlers stop the reading.
        self._unfinished = 0
        self._max_running = 64 * threads
        self._max_queued = 16
        self._capacity = threading.Condition()
        # The first events of sessions, for any idle thread; None ends a thread.
        self._first_events: queue.SimpleQueue[QueuedEvent | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._max_threads = threads
        # Idle threads, which wait for a first event.
        self._idle = 0
        # The time after which nothing is waited for.
        self._end: float | None = None
        # Kinds of events whose handlers have returned an awaitable.
        self._refused: set[str] = set()

    def handle(self, batch: Batch) -> None:
        """Handle a batch. Return when there is capacity for another."""
        if not self._max_threads:
            for event in batch:
                self._call(event)
            return
        for due in batch._undecoded():
            with self._capacity:
                if not self._wait(lambda: self._unfinished < self._max_running):
                    return
                session_queue = self._queues.get(due.session)
                if session_queue is not None:
                    self._unfinished += session_queue.add(due, self._max_queued)
                    continue
                self._queues[due.session] = SessionQueue(self._totals)
                self._unfinished += 1
                self._ensure_thread()
            self._first_events.put(due)

    def _ensure_thread(self) -> None:
        if self._idle:
            self._idle -= 1
        elif len(self._threads) < self._max_threads:
            name = f"wirespeed-handler_{len(self._threads)}"
            # A daemon thread, as the handler may never return and must not keep the interpreter from ending.
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while (event := self._first_events.get()) is not None:
            self._continue(event)
            with self._capacity:
                self._idle += 1

    def _wait(self, ready: Callable[[], bool]) -> bool:
        """Wait for a condition, with the lock held. False: the deadline has passed."""
        while not ready():
            left = None if self._end is None else self._end - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._capacity.wait(left)
        return True

    def end_at(self, at: float) -> None:
        """Set the time after which nothing is waited for. From any thread."""
        with self._capacity:
            self._end = at
            self._capacity.notify_all()

    def _call(self, event: Event) -> None:
        try:
            result = self._handlers.call(event)
            if result is not None and must_be_awaited(result):
                self._refuse(event, result)
        except Exception:
            log_handler_error(self._logger, event)

    def _refuse(self, event: Event, result: Any) -> None:
        kind = type(event).__name__
        if kind not in self._refused:
            self._refused.add(kind)
            self._logger.error("the handler of %s has returned %r: %s", kind, result, NOT_AWAITED)
        dispose(result)
        event.session.close(INTERNAL_ERROR, "internal error")

    def _continue(self, due: QueuedEvent) -> None:
        while True:
            try:
                self._call(decoded(due))
            except BaseException:
                # The thread continues: `sys.exit()` ends only the main thread.
                log_handler_error(self._logger, due)
            with self._capacity:
                session_queue = self._queues[due.session]
                if not session_queue:
                    del self._queues[due.session]
                    self._unfinished -= 1
                    self._capacity.notify()
                    return
                # The next event takes the place of the handled one in the count.
                due, change = session_queue.take()
                self._unfinished += change
                self._capacity.notify()

    def finish(self) -> None:
        """Wait for the running handlers."""
        with self._capacity:
            ended = self._wait(lambda: not self._queues)
            if not ended:
                self._logger.error("handlers of %d sessions have not returned in time", len(self._queues))
        for _ in self._threads:
            self._first_events.put(None)
        if ended:
            for thread in self._threads:
                thread.join()
