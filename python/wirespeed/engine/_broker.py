"""What is told of a broker, and publishing to one without an engine; all that connects is native."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TypeAlias

from .._annotations import Buffer, Self
from .._native import NativePublisher

__all__ = ["BrokerEvent", "BrokerPolicy", "BrokerStatus", "Published", "Publisher"]

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
            ``"refused"``, which the queue did not take; ``"dropped"``, which it dropped for newer ones; ``"doubtful"``,
            which were under way when the connection broke, or when NATS denied some of them. ``"unsupported"``: the
            broker has no wildcards, and sessions that subscribe with some get what is published on this engine alone.
            ``"denied"``: the same, of what the broker does not let this engine have; it is asked again when somebody
            subscribes anew, and by the next connection.
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
        reason: Why there is no connection; while there is one, what the broker has last refused.
        queued: Messages that wait to be sent.
        queued_bytes: The same, in bytes.
        subscriptions: Topics and patterns that are subscribed to at the broker.
        published: Messages that the broker has got.
        received: Messages that came, and went to sessions.
        lost: Messages of others that did not come, as far as later ones on the same topics tell.
        refused: Messages that were not taken.
        dropped: Messages that were taken, and dropped for newer ones.
        doubtful: Messages that were under way when a connection broke, or when NATS denied some of them.
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
    doubtful: int
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

    It connects in the background, for ever, and is closed by ``with``, ``async with`` or :meth:`close`.

    Args:
        url: The broker, as for ``Engine(broker=...)``.
        prefix: As for ``Engine(broker_prefix=...)``.
        limit: Bytes that may wait to be sent, 16 MiB by default: then :meth:`publish` waits.

    Raises:
        ValueError: An argument is not valid; the text shows no credentials.
    """

    # None has it: that of one that was not opened, which the calls below say.
    _number = -1
    # So many lost messages somebody has been told of.
    _told = 0

    def __init__(self, url: str, *, prefix: str = "", limit: int = 16 * 2**20) -> None:
        self._number = next(_numbers)
        self._open(url, prefix, limit)

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
        while not self._publish(topic, message, text, key):
            # In turns, so that a task that is cancelled leaves no thread behind.
            await asyncio.get_running_loop().run_in_executor(None, self._wait_for_room, _size(message), 0.2)

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
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        published, known = self._published(), self._known()
        while True:
            turn = 0.2 if end is None else min(0.2, max(end - loop.time(), 0))
            # Who is cancelled takes nothing from others: it is what is told that counts.
            missing = await loop.run_in_executor(None, self._flush, published, turn)
            if missing is not None or (end is not None and loop.time() >= end):
                return self._check_flushed(missing, known, timeout)

    def close(self) -> None:
        """End it. What was published is still sent, if there is a connection and it takes less than a second."""
        self._close()
        self._forget()

    async def aclose(self) -> None:
        """End it as :meth:`close` does, without keeping the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)
        self._forget()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _size(message: Any) -> int:
    return len(message.encode()) if isinstance(message, str) else memoryview(message).nbytes
