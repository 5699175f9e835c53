"""Connecting again: which errors are transient, how long to wait, what may change between tries.

It knows nothing of sockets or handshakes: it is given a function that connects.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import ssl
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._annotations import Self
from .._connection.state import State
from .._redaction import mask_uri, printable
from ..close_codes import CloseCode
from ..datastructures import Headers, Response
from ..exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from ..typing import LoggerLike
from ._leaving import leave

if TYPE_CHECKING:
    from ._connection import ClientConnection

__all__ = ["ConnectAttempt", "Policy", "Reconnection", "backoff", "process_exception"]

# Statuses of servers, and of what stands before them, that are overloaded or restarting. Precedent:
# websockets; and RFC 6585, section 4, which says when to come back.
_TRANSIENT = frozenset({429, 500, 502, 503, 504})

# RFC 6455, section 7.4.1: 1000 and a close frame without a code mean that the connection has served its
# purpose. 1001 means that the server goes down, or elsewhere: another connection is what it expects.
_CLEAN = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD})

# Seconds that are waited because a server says so. Precedent: urllib3.
_LONGEST = 6 * 3600.0


def process_exception(exc: Exception) -> Exception | None:
    """Tell whether an error of connecting is transient: the default of ``connect(process_exception=)``.

    Transient are ``OSError`` and ``TimeoutError``, a server that closes the connection instead of answering, and the
    statuses 429, 500, 502, 503 and 504. A certificate that does not verify is not: it will not get better by itself,
    and somebody may be listening.

    Args:
        exc: What connecting raised.

    Returns:
        ``None`` to try again, ``exc`` or another exception to raise it.
    """
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc
    # Before Python 3.11, asyncio has a TimeoutError of its own.
    if isinstance(exc, (OSError, asyncio.TimeoutError)):
        return None
    if isinstance(exc, InvalidMessage) and isinstance(exc.__cause__, EOFError):
        return None
    if isinstance(exc, InvalidStatus) and exc.response.status_code in _TRANSIENT:
        return None
    return exc


def backoff(
    initial_delay: float = 5.0, min_delay: float = 3.1, max_delay: float = 90.0, factor: float = 1.618
) -> Iterator[float]:
    """Generate delays between tries: the default of ``connect(reconnect_delays=)``.

    All are random, so that the clients of a server that went down do not come back all at once: RFC 6455, section
    7.2.3. They grow: each is at least as long as the one before it could be, until ``max_delay`` is reached.

    Args:
        initial_delay: Upper limit of the first, which may be 0.
        min_delay: Upper limit of the second.
        max_delay: Upper limit of all.
        factor: How much longer each can be than the one before.

    Yields:
        Seconds, without end.
    """
    import random

    yield random.random() * initial_delay  # noqa: S311 - nobody gains by guessing it
    delay = min_delay
    while True:
        delay = min(delay, max_delay)
        yield random.uniform(delay / factor, delay)  # noqa: S311 - nor this one
        delay *= factor


class _Replaceable(Headers):
    """Headers that are set, not added: or each try would add its token to that of the try before."""

    __slots__ = ()

    def __setitem__(self, name: str, value: str) -> None:
        if name in self:
            del self[name]
        super().__setitem__(name, value)


@dataclasses.dataclass(repr=False)
class ConnectAttempt:
    """What the next try to connect will use: the argument of ``connect(refresh=)``, which may change it.

    ``repr`` masks credentials, and the query of the URI, so it may be logged.

    Attributes:
        uri: Where to connect to. Changes stay for the tries after this one.
        additional_headers: Headers to add to the request. Changes stay, too. Setting one replaces those of that name.
        number: How many tries this makes since the last one that succeeded, beginning with 1.
        error: Why the try before this one failed; ``None`` if it did not, or if this is the first.
    """

    uri: str
    additional_headers: Headers
    number: int = 1
    error: Exception | None = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(uri={mask_uri(self.uri)!r}, additional_headers={self.additional_headers!r}, "
            f"number={self.number!r}, error={self.error!r})"
        )

    @classmethod
    def first(cls, uri: str, headers: Headers | None) -> ConnectAttempt:
        """Return what the arguments of ``connect`` say.

        Args:
            uri: The URI.
            headers: The headers to add to the request. They will not be changed.
        """
        return cls(uri, _Replaceable.from_raw(() if headers is None else headers.raw_items()))


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Policy:
    """The keyword arguments of ``connect`` that concern more than one try. Their names are those of ``connect``.

    Raises:
        TypeError: An argument has a wrong type.
    """

    process_exception: Callable[[Exception], Exception | None] = process_exception
    reconnect_delays: Callable[[], Iterable[float]] = backoff
    reconnect_after_close: bool = False
    refresh: Callable[[ConnectAttempt], Awaitable[None] | None] | None = None

    def __post_init__(self) -> None:
        for name in ("process_exception", "reconnect_delays", "refresh"):
            value = getattr(self, name)
            if not callable(value) and (name != "refresh" or value is not None):
                raise TypeError(f"{name} must be a function, not {type(value).__name__}")
        if not isinstance(self.reconnect_after_close, bool):
            raise TypeError(f"reconnect_after_close must be a bool, not {type(self.reconnect_after_close).__name__}")

    async def call_refresh(self, attempt: ConnectAttempt) -> None:
        """Let the user change what the next try will use.

        Args:
            attempt: What it will use.
        """
        if self.refresh is None:
            return
        result: Any = self.refresh(attempt)
        if inspect.isawaitable(result):
            result = await result
        if result is not None:
            raise TypeError(f"refresh must change its argument and return None, not {type(result).__name__}")


class Reconnection:
    """The iterator of ``async for ws in connect(...)``: one connection after another.

    Each is closed when the next is asked for, and when the iterator is closed or forgotten, which is what leaving the
    loop does to it.

    Args:
        connect: Opens a connection.
        first: What the first try will use.
        policy: When and how to go on.
        logger: Where to say that it goes on.
    """

    def __init__(
        self,
        connect: Callable[[ConnectAttempt], Awaitable[ClientConnection]],
        first: ConnectAttempt,
        policy: Policy,
        logger: LoggerLike,
    ) -> None:
        self._connection: ClientConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._attempt = first
        self._policy = policy
        self._logger = logger
        self._delays: Iterator[float] | None = None
        self._opened_at = 0.0
        self._finished = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ClientConnection:
        if self._finished:
            raise StopAsyncIteration
        # Only a connection keeps it going.
        self._finished = True
        delay = await self._leave()
        if delay is None:
            raise StopAsyncIteration
        self._connection = await self._open(delay)
        self._opened_at = self._loop.time()
        self._finished = False
        return self._connection

    async def aclose(self) -> None:
        """Close the connection and end the iteration, as leaving the loop does, but return when it is done."""
        self._finished = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)

    def __del__(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.state is not State.CLOSED:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                leave(connection, CloseCode.NORMAL_CLOSURE)

    async def _open(self, delay: float) -> ClientConnection:
        while True:
            if delay:
                await asyncio.sleep(delay)
            try:
                connection = await self._connect(self._attempt)
            except Exception as exc:
                delay = self._fail(exc)
            else:
                self._attempt.number = 1
                self._attempt.error = None
                return connection

    def _fail(self, exc: Exception) -> float:
        """Return how long to wait after a try that failed; raise if that is the end."""
        # It is to return an exception. One that raises it means the same.
        try:
            fatal = self._policy.process_exception(exc)
        except Exception as raised:
            fatal = raised
        delay = self._next_delay(self._where, exc) if fatal is None else None
        if delay is None:
            if fatal is None or fatal is exc:
                raise exc
            raise fatal from exc
        if isinstance(exc, InvalidStatus):
            delay = max(delay, _asked_for(exc.response))
        self._logger.info(
            "connect to %s failed; reconnecting in %.1f seconds: %s",
            self._where,
            delay,
            traceback.format_exception_only(type(exc), exc)[0].strip(),
        )
        self._attempt.number += 1
        # Its traceback refers to this iterator, which closes its connection when it is forgotten: no cycle,
        # please.
        self._attempt.error = exc.with_traceback(None)
        return delay

    async def _leave(self) -> float | None:
        """Close the connection of the round before. Return how long to wait; ``None``: the end."""
        connection, self._connection = self._connection, None
        if connection is None:
            return 0.0
        lived = self._loop.time() - self._opened_at
        left_open = connection.state is State.OPEN
        await _close(connection)
        if left_open:
            # Whoever leaves a connection that works wants another one.
            self._delays = None
            return 0.0
        reason = connection._closed_error()
        if _has_served(reason) and not self._policy.reconnect_after_close:
            return None
        # A server that accepts connections and closes them is no better than one that does not accept them.
        # The time that the connection has lasted counts, so one that worked is replaced at once.
        delay = self._next_delay(connection._label, reason)
        if delay is not None:
            if lived >= delay:
                self._delays = None
            delay = max(0.0, delay - lived)
            self._logger.info(
                "connection closed (%s); reconnecting in %.1f seconds: %s", connection._label, delay, reason
            )
        return delay

    def _next_delay(self, who: str, reason: Exception) -> float | None:
        if self._delays is None:
            self._delays = iter(self._policy.reconnect_delays())
        delay = next(self._delays, None)
        if delay is None:
            # Of the end of a loop, nothing else tells.
            self._logger.warning("not connecting again, as reconnect_delays has ended (%s): %s", who, reason)
        return delay

    @property
    def _where(self) -> str:
        return printable(mask_uri(self._attempt.uri))


def _has_served(end: ConnectionClosed) -> bool:
    """Return whether either end has said by its close frame that the connection has served its purpose.

    The first word counts: a server that is told so may answer with another code, or end TCP without an answer.
    """
    if end.rcvd is not None and end.rcvd.code in _CLEAN:
        return True
    return end.sent is not None and end.sent.code in _CLEAN and not end.rcvd_then_sent


def _asked_for(response: Response) -> float:
    """Return for how many seconds a server wants to be left alone: RFC 9110, section 10.2.3."""
    import random

    text = response.headers.get("Retry-After", "") if len(response.headers.get_all("Retry-After")) == 1 else ""
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        import datetime
        import email.utils

        try:
            date = email.utils.parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return 0.0
        # One in an old form has no zone.
        date = date if date.tzinfo is not None else date.replace(tzinfo=datetime.timezone.utc)
        seconds = (date - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    # All whom it has told the same would come back at once.
    return min(max(seconds, 0.0) * random.uniform(1, 1.2), _LONGEST)  # noqa: S311 - nobody gains by guessing it


async def _close(connection: ClientConnection) -> None:
    try:
        await connection.close(CloseCode.NORMAL_CLOSURE)
    except BaseException:
        # Cancelled: nothing waits for the server any more.
        leave(connection, CloseCode.NORMAL_CLOSURE)
        raise
