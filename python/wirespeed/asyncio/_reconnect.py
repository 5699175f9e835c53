"""Reconnecting: which errors are transient, how long to wait, and what can change between attempts.

The caller provides the function that connects. This module knows nothing about sockets or handshakes.
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

from .._connection import State
from .._redaction import mask_uri, printable
from ..close_codes import CloseCode
from ..datastructures import Headers, Response
from ..exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from ..typing import LoggerLike, Self
from ._tasks import leave

if TYPE_CHECKING:
    from ._connection import ClientConnection

__all__ = ["ConnectAttempt", "Policy", "Reconnection", "backoff", "process_exception"]

# Statuses of servers and proxies that are overloaded or restarting, as in websockets; RFC 6585, section 4, defines 429
# and its Retry-After header.
_TRANSIENT = frozenset({429, 500, 502, 503, 504})

# RFC 6455, section 7.4.1: code 1000, or a close frame without a code, means that the connection has fulfilled its
# purpose. Code 1001 means that the server goes down: the client is expected to reconnect.
_CLEAN = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.NO_STATUS_RCVD})

# Maximum delay in seconds that a Retry-After header can set, as in urllib3.
_MAX_RETRY_AFTER = 6 * 3600.0


def process_exception(exc: Exception) -> Exception | None:
    """Decide whether an error of connecting is transient: the default of ``connect(process_exception=)``.

    Transient errors are ``OSError`` and ``TimeoutError``, a connection that the server closes before its response, and
    the statuses 429, 500, 502, 503 and 504. A certificate that cannot be verified is not transient: it does not become
    valid by itself, and may indicate an attack.

    Args:
        exc: The exception that connecting raised.

    Returns:
        ``None`` to try again, ``exc`` or another exception to raise it.
    """
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc
    # Before Python 3.11, asyncio.TimeoutError is a class of its own.
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
    """Generate delays between attempts: the default of ``connect(reconnect_delays=)``.

    All delays are random, so that the clients of a restarted server do not return all at once (RFC 6455, section
    7.2.3). They grow until ``max_delay`` is reached: each is at least as long as the maximum of the one before.

    Args:
        initial_delay: Maximum of the first delay in seconds; it may be 0.
        min_delay: Maximum of the second delay in seconds.
        max_delay: Maximum of all delays in seconds.
        factor: Factor by which the maximum grows with each delay.

    Yields:
        Seconds, without end.
    """
    import random

    yield random.random() * initial_delay  # noqa: S311 - not a secret
    delay = min_delay
    while True:
        delay = min(delay, max_delay)
        yield random.uniform(delay / factor, delay)  # noqa: S311 - not a secret
        delay *= factor


class _Replaceable(Headers):
    """Headers whose assignment replaces a value, so that tokens of earlier attempts do not add up."""

    __slots__ = ()

    def __setitem__(self, name: str, value: str) -> None:
        if name in self:
            del self[name]
        super().__setitem__(name, value)


@dataclasses.dataclass(repr=False)
class ConnectAttempt:
    """The next attempt to connect: the argument of ``connect(refresh=)``, which may change it.

    ``repr`` masks credentials and the query of the URI, so it can be logged.

    Attributes:
        uri: URI to connect to. A change stays for later attempts.
        additional_headers: Headers to add to the request. A change stays for later attempts. Setting a header replaces
            all headers of that name.
        number: Number of this attempt since the last success, beginning with 1.
        error: Exception of the previous attempt; ``None`` if it succeeded or if this is the first attempt.
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
        """Return the first attempt.

        Args:
            uri: The URI.
            headers: The headers to add to the request. They are copied.
        """
        return cls(uri, _Replaceable.from_raw(() if headers is None else headers.raw_items()))


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Policy:
    """The keyword arguments of ``connect`` that concern reconnecting, with the same names.

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
        """Call ``refresh``, which may change the next attempt.

        Args:
            attempt: The next attempt.
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

    It closes each connection when the next one is requested. It also closes the last one when it is closed or
    collected, as happens when the loop is left.

    Args:
        connect: Opens a connection.
        first: The first attempt.
        policy: Whether and when to reconnect.
        logger: Logger for the reasons of reconnecting.
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
        # If this call raises, the iteration is finished.
        self._finished = True
        delay = await self._close_previous()
        if delay is None:
            raise StopAsyncIteration
        self._connection = await self._open(delay)
        self._opened_at = self._loop.time()
        self._finished = False
        return self._connection

    async def aclose(self) -> None:
        """Close the connection and end the iteration; return when the connection is closed."""
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
                delay = self._delay_after_failure(exc)
            else:
                self._attempt.number = 1
                self._attempt.error = None
                return connection

    def _delay_after_failure(self, exc: Exception) -> float:
        """Return the delay after a failed attempt; raise an exception to end the iteration."""
        # A process_exception that raises is treated like one that returns the exception.
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
            delay = max(delay, _retry_after(exc.response))
        self._logger.info(
            "connect to %s failed; reconnecting in %.1f seconds: %s",
            self._where,
            delay,
            traceback.format_exception_only(type(exc), exc)[0].strip(),
        )
        self._attempt.number += 1
        # Without its traceback, which refers to this iterator: the cycle would delay closing the connection.
        self._attempt.error = exc.with_traceback(None)
        return delay

    async def _close_previous(self) -> float | None:
        """Close the connection of the previous round. Return the delay to wait, ``None`` to end the iteration."""
        connection, self._connection = self._connection, None
        if connection is None:
            return 0.0
        lived = self._loop.time() - self._opened_at
        left_open = connection.state is State.OPEN
        await _close(connection)
        if left_open:
            # The caller left a working connection to get another one: no delay.
            self._delays = None
            return 0.0
        reason = connection._closed_error()
        if _closed_cleanly(reason) and not self._policy.reconnect_after_close:
            return None
        # Accepting and then closing counts as a failure, so the delays grow. The lifetime of the connection is
        # subtracted from the delay: a connection that worked is replaced at once.
        delay = self._next_delay(connection._label, reason)
        if delay is not None:
            if lived >= delay:
                self._delays = None
            delay = max(0.0, delay - lived)
            self._logger.info(
                "connection closed (%s); reconnecting in %.1f seconds: %s", connection._label, delay, reason
            )
        return delay

    def _next_delay(self, label: str, reason: Exception) -> float | None:
        if self._delays is None:
            self._delays = iter(self._policy.reconnect_delays())
        delay = next(self._delays, None)
        if delay is None:
            # The loop ends without an exception, so the log is the only notice.
            self._logger.warning("not connecting again, as reconnect_delays has ended (%s): %s", label, reason)
        return delay

    @property
    def _where(self) -> str:
        return printable(mask_uri(self._attempt.uri))


def _closed_cleanly(end: ConnectionClosed) -> bool:
    """Return whether either end has closed the connection because it fulfilled its purpose.

    The first close frame counts: the other end may respond with another code, or without a close frame.
    """
    if end.rcvd is not None and end.rcvd.code in _CLEAN:
        return True
    return end.sent is not None and end.sent.code in _CLEAN and not end.rcvd_then_sent


def _retry_after(response: Response) -> float:
    """Return the seconds of a Retry-After header: RFC 9110, section 10.2.3."""
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
        # Obsolete date formats have no time zone.
        date = date if date.tzinfo is not None else date.replace(tzinfo=datetime.timezone.utc)
        seconds = (date - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    # Randomized, so that clients with the same header do not return all at once.
    return min(max(seconds, 0.0) * random.uniform(1, 1.2), _MAX_RETRY_AFTER)  # noqa: S311 - not a secret


async def _close(connection: ClientConnection) -> None:
    try:
        await connection.close(CloseCode.NORMAL_CLOSURE)
    except BaseException:
        # Cancelled: close without waiting for the server.
        leave(connection, CloseCode.NORMAL_CLOSURE)
        raise
