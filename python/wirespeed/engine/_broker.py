"""What is told of a broker, and publishing to one without an engine; all that connects is native."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TypeAlias

from .._annotations import Buffer, Self
from .._native import NativePublisher
from ._arguments import checked_seconds
from ._lifecycle import begin_logging
from ._log import Log
from ._rooms import wait_for_publisher

__all__ = ["BrokerEvent", "BrokerPolicy", "BrokerStatus", "Published", "Publisher"]

_logger = Log(logging.getLogger("wirespeed.engine"))

BrokerPolicy: TypeAlias = Literal["drop_newest", "drop_oldest", "raise"]


class Published(int):
    """How many sessions of this engine a message goes to: an ``int``.

    Attributes:
        forwarded: Whether it goes to other engines as well: the queue to the broker has taken it. False without a
            broker.
    """

    __slots__ = ()
    forwarded = False


class Forwarded(Published):
    """The same, of a message that goes to other engines."""

    __slots__ = ()
    forwarded = True


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerEvent:
    """What has happened to a broker.

    Attributes:
        kind: ``"connected"`` and ``"disconnected"``; of messages, how many: ``"lost"``, of others, which did not come;
            ``"refused"``, which the queue did not take; ``"dropped"``, which newer ones replaced; ``"unconfirmed"``,
            which were under way when the connection broke, or when NATS denied some of them. ``"unsupported"``: the
            broker has no wildcards, and sessions that subscribe with some get what is published on this engine alone.
            ``"denied"``: the broker denies a subscription, with the same effect; it is asked again after 1 to 30 s, and
            by the next connection.
        count: How many messages.
        reason: Why, without credentials; of ``"unsupported"``, the pattern; of ``"denied"``, the pattern, and what the
            broker says.
    """

    kind: str
    count: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerStatus:
    """How it stands with a broker, and what was counted since the start.

    Attributes:
        state: ``"connecting"``, until the first connection, ``"connected"``, ``"disconnected"`` or ``"closed"``.
        server: Where it is, without credentials.
        reason: Why there is no connection; while there is one, why it refuses messages, until it takes them
            again, or denies a subscription.
        queued: Messages that wait to be sent.
        queued_bytes: The same, in bytes.
        subscriptions: Topics and patterns that are subscribed to at the broker.
        published: Messages that the broker has got.
        received: Messages that came, and went to sessions.
        lost: Messages of others that did not come, as far as later ones on the same topics tell.
        refused: Messages that were not taken.
        dropped: Messages that were taken, and dropped for newer ones.
        unconfirmed: Messages that were under way when a connection broke, or when NATS denied some of them.
        invalid: Messages that came and were none.
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
        """Whether messages come and go."""
        return self.state == "connected"


# How many messages a publisher, by its number, may have lost when this thread or task published the first one that it
# has not flushed. What is in it is never changed, as contexts are copied.
_lost_before: ContextVar[Mapping[int, int]] = ContextVar("wirespeed.lost_before")

_numbers = itertools.count()


class Publisher(NativePublisher):
    """Publishes to the sessions of all engines on a broker, from any process and thread.

    It connects in the background, again after each failure, and is closed by ``with``, ``async with`` or
    :meth:`close`. Closing waits until the broker has everything that was published.

    Args:
        url: The broker, as for ``Engine(broker=...)``.
        prefix: As for ``Engine(broker_prefix=...)``.
        limit: Bytes that may wait to be sent, 16 MiB by default: then :meth:`publish` waits.
        close_timeout: Seconds that closing waits for the broker, 10 by default; ``None``: any time.

    Raises:
        TypeError: ``close_timeout`` is no number.
        ValueError: An argument is not valid; the text shows no credentials.
    """

    # None has it: that of one that was not opened, which the calls below say.
    _number = -1
    # So many lost messages somebody has been told of.
    _told = 0

    def __init__(
        self, url: str, *, prefix: str = "wirespeed", limit: int = 16 * 2**20, close_timeout: float | None = 10
    ) -> None:
        self._close_timeout = None if close_timeout is None else checked_seconds("close_timeout", close_timeout)
        self._number = next(_numbers)
        self._open(url, prefix, limit)
        begin_logging(self._logs(), _logger)

    @property
    def status(self) -> BrokerStatus:
        """How it stands."""
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
        """Publish a message: it is sent in the background. Wait if there is no room.

        Args:
            topic: Its name, without wildcards; ``None``: to all sessions of all engines.
            message: ``str`` is sent as text, anything with a buffer as binary.
            text: Send it as text, which must be UTF-8, or as binary, whatever it is.
            key: What it is about: see ``policy="conflate"`` of engines.
            timeout: Seconds to wait for room; ``None``: any time.

        Raises:
            RuntimeError: It is closed.
            TimeoutError: There was no room in time: the broker is down, or slower than this.
            ValueError: It is no topic.
        """
        self._remember()
        while not self._publish(topic, message, text, key):
            if not self._wait_for_room(_size(message), timeout):
                raise TimeoutError(f"there was no room for a message in {timeout} seconds")

    async def apublish(
        self, topic: str | None, message: str | Buffer, *, text: bool | None = None, key: str | None = None
    ) -> None:
        """Publish a message as :meth:`publish` does; wait for room without keeping the event loop."""
        self._remember()
        size = _size(message)
        while not self._publish(topic, message, text, key):
            await wait_for_publisher(self, lambda: self._has_room(size))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the broker has everything that was published before.

        Args:
            timeout: Seconds; ``None``: any time.

        Raises:
            ConnectionError: The connection broke, or the broker has refused something, and some messages may not have
                got there; the text says how many, of those since this thread or task has flushed. Each that waits is
                told, and each that published before.
            TimeoutError: It has not in time.
        """
        published, known = self._published(), self._known()
        self._check_flushed(self._flush(published, timeout), known, timeout)

    async def aflush(self, timeout: float | None = None) -> None:
        """Wait as :meth:`flush` does, without keeping the event loop."""
        published, known = self._published(), self._known()
        self._check_flushed(await self._settled(published, timeout), known, timeout)

    async def _settled(self, published: int, timeout: float | None) -> int | None:
        """What ``_flush`` returns, without keeping the event loop."""
        missing = self._flush(published, 0)
        if missing is None:
            waiting = wait_for_publisher(self, lambda: self._flush(published, 0) is not None)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(waiting, timeout)
            missing = self._flush(published, 0)
        return missing

    def close(self) -> None:
        """End it, after waiting up to ``close_timeout`` until the broker has everything that was published.

        Raises:
            ConnectionError: The broker may not have got some messages: it could not be reached, was too slow, or has
                refused them. The publisher is closed all the same.
        """
        known = self._known()
        try:
            self._flush(self._published(), self._close_timeout)
        finally:
            reason = self._status()["reason"]
            self._close()
        self._check_closed(known, reason)

    async def aclose(self) -> None:
        """End it as :meth:`close` does, without keeping the event loop."""
        known = self._known()
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

    def _remember(self) -> None:
        lost = _lost_before.get({})
        if self._number not in lost:
            _lost_before.set({**lost, self._number: self._missing()})

    def _forget(self) -> None:
        lost = _lost_before.get({})
        if self._number in lost:
            _lost_before.set({number: count for number, count in lost.items() if number != self._number})

    def _known(self) -> int:
        """How many lost messages the caller need not be told of: somebody was, and before the caller published."""
        return min(self._told, _lost_before.get({}).get(self._number, self._told))

    def _check_flushed(self, missing: int | None, known: int, timeout: float | None) -> None:
        if missing is None:
            raise TimeoutError(f"the broker has not got everything in {timeout} seconds")
        self._told = max(self._told, missing)
        self._forget()
        if missing > known:
            raise ConnectionError(f"the broker may not have got {missing - known} of the messages")

    def _check_closed(self, known: int, reason: str | None) -> None:
        missing = self._missing()
        self._told = max(self._told, missing)
        self._forget()
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
        with self._quiet_after(exc):
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._quiet_after(exc):
            await self.aclose()

    @contextlib.contextmanager
    def _quiet_after(self, exc: BaseException | None) -> Iterator[None]:
        """Log what closing raises if the block has raised something else, which is not to be replaced."""
        try:
            yield
        except ConnectionError as error:
            if exc is None:
                raise
            _logger.error("%s", error)


def _size(message: Any) -> int:
    return len(message.encode()) if isinstance(message, str) else memoryview(message).nbytes
