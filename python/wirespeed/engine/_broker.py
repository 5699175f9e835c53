"""Events and status of a broker, and a publisher without an engine. The native core makes the connections."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .._native import NativePublisher
from ..typing import Buffer, Self
from ._arguments import checked_seconds
from ._event_loop import wait_for_publisher
from ._handlers import NOT_AWAITED, dispose, must_be_awaited
from ._log import Log, start_logging

if TYPE_CHECKING:
    from ._engine import Engine

__all__ = ["BrokerEvent", "BrokerPolicy", "BrokerStatus", "Notices", "Published", "Publisher"]

_logger = Log(logging.getLogger("wirespeed.engine"))

BrokerPolicy: TypeAlias = Literal["drop_newest", "drop_oldest", "raise"]


class Published(int):
    """The number of sessions of this engine that a message was sent to: an ``int``.

    Attributes:
        forwarded: Whether the queue to the broker accepted the message, so that other engines get it. False without a
            broker.
    """

    __slots__ = ()
    forwarded = False


class Forwarded(Published):
    """The result for a message that other engines get as well."""

    __slots__ = ()
    forwarded = True


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerEvent:
    """A change in the connection to the broker, or messages that were lost or refused.

    Attributes:
        kind: ``"connected"`` and ``"disconnected"`` concern the connection. The following ones concern messages:
            ``"lost"`` from other engines, which were not received; ``"refused"`` by the queue or the broker;
            ``"dropped"`` from the queue for newer ones; ``"unconfirmed"``, which were in flight when the connection
            broke, or when NATS denied some of them. ``"unsupported"``: the broker has no wildcards, so sessions that
            subscribe with wildcards get only messages of this engine. ``"denied"``: the broker denies a subscription,
            with the same effect. The subscription is retried after 1 to 30 s, and by the next connection.
        count: The number of messages.
        reason: The cause, without credentials. For ``"unsupported"``, the pattern; for ``"denied"``, the pattern and
            the broker's answer.
    """

    kind: str
    count: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The state of the connection to the broker, and counters since the start.

    Attributes:
        state: ``"connecting"`` until the first connection, ``"connected"``, ``"disconnected"`` or ``"closed"``.
        server: The address of the broker, without credentials.
        reason: Why there is no connection. While there is one, why the broker refuses messages, until it accepts them
            again, or denies a subscription.
        queued: Messages in the queue to the broker.
        queued_bytes: The size of the queue in bytes.
        subscriptions: Topics and patterns subscribed to at the broker.
        published: Messages that the broker has received.
        received: Messages received from the broker and sent to sessions.
        lost: Messages of others that were not received, as far as later ones on the same topics show.
        refused: Messages that the queue or the broker refused.
        dropped: Messages that were dropped from the queue for newer ones.
        unconfirmed: Messages that were in flight when a connection broke, or when NATS denied some of them.
        invalid: Received messages that were malformed.
        reconnects: Connections after the first.
    """

    state: str
    server: str
    reason: str | None
    queued: int
    queued_bytes: int
    subscriptions: int
    published: int
    received: int
    lost: int
    refused: int
    dropped: int
    unconfirmed: int
    invalid: int
    reconnects: int

    @property
    def is_connected(self) -> bool:
        """Whether the broker is connected."""
        return self.state == "connected"


# For each publisher, by number: how many of its messages were missing when this thread or task published its first
# message since its last flush. The mappings are never modified, as contexts share them.
_missing_before: ContextVar[Mapping[int, int]] = ContextVar("wirespeed.lost_before")

_numbers = itertools.count()


class Publisher(NativePublisher):
    """Publishes to the sessions of all engines on a broker, from any process and thread.

    It connects in the background, and reconnects after each failure. ``with``, ``async with`` and :meth:`close` close
    it, after waiting until the broker has received all published messages.

    Args:
        url: The broker, as for ``Engine(broker=...)``.
        prefix: As for ``Engine(broker_prefix=...)``.
        limit: The maximum size of the queue in bytes, 16 MiB by default. :meth:`publish` waits while the queue is full.
        close_timeout: Seconds that closing waits for the broker, 10 by default; ``None``: no limit.

    Raises:
        TypeError: ``close_timeout`` is not a number.
        ValueError: An argument is not valid; the text shows no credentials.
    """

    # The number of a publisher that was not opened; the native methods then raise.
    _number = -1
    # The number of missing messages that were reported by an exception.
    _reported = 0

    def __init__(
        self, url: str, *, prefix: str = "wirespeed", limit: int = 16 * 2**20, close_timeout: float | None = 10
    ) -> None:
        self._close_timeout = None if close_timeout is None else checked_seconds("close_timeout", close_timeout)
        self._number = next(_numbers)
        self._open(url, prefix, limit)
        start_logging(self._logs(), _logger)

    @property
    def status(self) -> BrokerStatus:
        """The state of the connection, and counters."""
        return BrokerStatus(**self._status())

    def publish(
        self,
        topic: str | None,
        message: str | Buffer,
        *,
        text: bool | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish a message, which is sent in the background. Wait while the queue is full.

        Args:
            topic: The topic, without wildcards; ``None``: all sessions of all engines.
            message: ``str`` is sent as text, anything with a buffer as binary.
            text: Send it as text, which must be UTF-8, or as binary, regardless of its type.
            key: The key for engines with ``policy="conflate"``.
            timeout: Seconds to wait while the queue is full; ``None``: no limit.

        Raises:
            RuntimeError: The publisher is closed.
            TimeoutError: The queue stayed full: the broker is down, or slower than the publisher.
            ValueError: The topic is not valid.
        """
        self._record_baseline()
        while not self._publish(topic, message, text, key):
            if not self._wait_for_room(_size(message), timeout):
                raise TimeoutError(f"there was no room for a message in {timeout} seconds")

    async def apublish(
        self, topic: str | None, message: str | Buffer, *, text: bool | None = None, key: str | None = None
    ) -> None:
        """Publish a message as :meth:`publish` does, without blocking the event loop."""
        self._record_baseline()
        size = _size(message)
        while not self._publish(topic, message, text, key):
            await wait_for_publisher(self, lambda: self._has_room(size))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the broker has received all messages published before.

        Args:
            timeout: Seconds; ``None``: no limit.

        Raises:
            ConnectionError: The broker may not have received some messages, because the connection broke or the broker
                refused them. The text says how many, since the last flush of this thread or task. All concurrent
                callers, and all that published before, get the exception.
            TimeoutError: It has not received them in time.
        """
        published, known = self._published(), self._already_reported()
        self._check_flushed(self._flush(published, timeout), known, timeout)

    async def aflush(self, timeout: float | None = None) -> None:
        """Wait as :meth:`flush` does, without blocking the event loop."""
        published, known = self._published(), self._already_reported()
        self._check_flushed(await self._settled(published, timeout), known, timeout)

    async def _settled(self, published: int, timeout: float | None) -> int | None:
        """Return the result of ``_flush``, without blocking the event loop."""
        missing = self._flush(published, 0)
        if missing is None:
            waiting = wait_for_publisher(self, lambda: self._flush(published, 0) is not None)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, timeout)
            missing = self._flush(published, 0)
        return missing

    def close(self) -> None:
        """Close the publisher, after waiting up to ``close_timeout`` until the broker has received all messages.

        Raises:
            ConnectionError: The broker may not have received some messages: it could not be reached, was too slow, or
                refused them. The publisher is closed nevertheless.
        """
        known = self._already_reported()
        try:
            self._flush(self._published(), self._close_timeout)
        finally:
            reason = self._status()["reason"]
            self._close()
        self._check_closed(known, reason)

    async def aclose(self) -> None:
        """Close the publisher as :meth:`close` does, without blocking the event loop."""
        known = self._already_reported()
        try:
            await self._settled(self._published(), self._close_timeout)
        finally:
            reason = self._status()["reason"]
            self._end()
            try:
                await wait_for_publisher(self, self._has_ended)
            finally:
                self._close()
        self._check_closed(known, reason)

    def _record_baseline(self) -> None:
        lost = _missing_before.get({})
        if self._number not in lost:
            _missing_before.set({**lost, self._number: self._missing()})

    def _clear_baseline(self) -> None:
        lost = _missing_before.get({})
        if self._number in lost:
            _missing_before.set({number: count for number, count in lost.items() if number != self._number})

    def _already_reported(self) -> int:
        """Return how many missing messages were reported, and missing before the caller published."""
        return min(self._reported, _missing_before.get({}).get(self._number, self._reported))

    def _check_flushed(self, missing: int | None, known: int, timeout: float | None) -> None:
        if missing is None:
            raise TimeoutError(f"the broker has not got everything in {timeout} seconds")
        self._reported = max(self._reported, missing)
        self._clear_baseline()
        if missing > known:
            raise ConnectionError(f"the broker may not have got {missing - known} of the messages")

    def _check_closed(self, known: int, reason: str | None) -> None:
        missing = self._missing()
        self._reported = max(self._reported, missing)
        self._clear_baseline()
        if missing > known:
            why = "" if reason is None else f": {reason}"
            raise ConnectionError(
                f"the publisher is closed, and the broker may not have got {missing - known} of the messages{why}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._logging_after(exc):
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._logging_after(exc):
            await self.aclose()

    @contextlib.contextmanager
    def _logging_after(self, exc: BaseException | None) -> Iterator[None]:
        """Log an error of closing instead of raising it, if the block has raised another exception."""
        try:
            yield
        except ConnectionError as error:
            if exc is None:
                raise
            _logger.error("%s", error)


def _size(message: Any) -> int:
    return len(message.encode()) if isinstance(message, str) else memoryview(message).nbytes


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
