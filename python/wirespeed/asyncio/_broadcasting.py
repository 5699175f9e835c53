"""Broadcasting one message to many connections, and the log of connections that miss broadcasts."""

from __future__ import annotations

import builtins
import time
import weakref
from collections.abc import Collection, Iterable
from typing import Any, Literal

from .._connection import State
from .._native import broadcast as _broadcast
from ..exceptions import ConcurrencyError
from ..typing import DataLike, LoggerLike
from ._connection import Connection

__all__ = ["broadcast", "reusable", "report"]

_REASONS = {
    "slow": "its peer does not read",
    "fragments": "sending a fragmented message",
    "failed": "failed to write message",
}


def broadcast(
    connections: Iterable[Connection],
    message: DataLike,
    *,
    text: bool | None = None,
    raise_exceptions: bool = False,
    slow: Literal["skip", "drop", "close"] = "skip",
) -> int:
    """Send a message to many connections without waiting for any of them.

    The message is encoded once, and compressed at most once for each set of negotiated compression parameters. Each
    connection takes one system call. Connections that are not open are ignored.

    Args:
        connections: The connections, of servers or clients.
        message: ``str`` for a text message, bytes-like for a binary message.
        text: ``True`` to send bytes as text, ``False`` to send ``str`` as binary.
        raise_exceptions: Whether to raise an ``ExceptionGroup`` with one exception for each connection that missed the
            message (in Python 3.10, the first of these exceptions). Otherwise a connection that misses messages is
            logged twice: at the first one, and with their number when it receives broadcasts again or is closed.
        slow: What to do with a connection that has more than ``write_limit`` bytes unsent because its peer does not
            read: ``"skip"`` to skip this message, ``"drop"`` to abort the connection, ``"close"`` to close it with
            code 1013.

    Returns:
        The number of connections that the message was sent to.

    Raises:
        TypeError: The message or a connection has a wrong type.
        ValueError: ``slow`` is none of these values.
    """
    if slow not in ("skip", "drop", "close"):
        raise ValueError(f'slow must be "skip", "drop" or "close", not {slow!r}')
    connections = reusable(connections)
    sent, missed = _broadcast(connections, message, text, slow)
    report(connections, missed, raise_exceptions)
    return sent


# At most _MAX_LINES log lines in _INTERVAL seconds, over all connections.
_MAX_LINES = 20
_INTERVAL = 10.0


class _LineLimiter:
    """Limits the rate of log lines over all connections."""

    def __init__(self) -> None:
        self._since = -_INTERVAL
        self._count = 0
        self._left_out = 0

    def warn(self, logger: LoggerLike, text: str, *arguments: Any) -> None:
        now = time.monotonic()
        if now - self._since >= _INTERVAL:
            self._since, self._count = now, 0
        if self._count >= _MAX_LINES:
            self._left_out += 1
            return
        self._count += 1
        if self._left_out:
            text, arguments = text + "; %d lines like it were left out", (*arguments, self._left_out)
            self._left_out = 0
        if self._count == _MAX_LINES:
            # Announce the gap now: no later line may follow to report it.
            text, arguments = text + "; more like it in the next %d s are left out", (*arguments, _INTERVAL)
        logger.warning(text, *arguments)


_limiter = _LineLimiter()


class _Stall:
    """A period in which one connection misses broadcasts: logs one line at its beginning and one at its end.

    A line for each missed message would let peers fill the log. The object is kept for the next such period, because
    its callback on the end of the connection cannot be removed. So each connection has at most one.
    """

    def __init__(self, connection: Any, why: str) -> None:
        self.connection = weakref.ref(connection, self._gone)
        self._key = id(connection)
        self._logger = connection.logger
        self._label = connection._label
        _known[self._key] = self
        self.begin(why)
        future = connection._closed_future(awaited=False)
        if future is not None:
            future.add_done_callback(self._gone)

    def begin(self, why: str) -> None:
        self.why: str | None = why
        self.count = 1
        _stalls[self._key] = self
        _limiter.warn(self._logger, "skipped broadcast (%s): %s", self._label, _REASONS[why])

    def end(self, what: str = "broadcasts arrive again") -> None:
        self.why = None
        if _stalls.get(self._key) is self:
            del _stalls[self._key]
        if self.count > 1:
            _limiter.warn(self._logger, "%s (%s): %d were skipped", what, self._label, self.count)

    def _gone(self, _: object) -> None:
        if _known.get(self._key) is self:
            del _known[self._key]
            if self.why is not None:
                self.end("connection closed without broadcasts")


# By id of the connection: connections that have ever missed a broadcast, until they are closed or collected.
_known: dict[int, _Stall] = {}

# The subset that has missed the last broadcast.
_stalls: dict[int, _Stall] = {}


def reusable(connections: Iterable[Any]) -> Iterable[Any]:
    """Return the connections of a broadcast, as a list if they must be iterated twice and are an iterator.

    Args:
        connections: The argument of the user.
    """
    is_iterator = isinstance(connections, Iterable) and not isinstance(connections, Collection)
    return list(connections) if _stalls and is_iterator else connections


def report(connections: Iterable[Any], missed: list[tuple[Any, str]], raise_exceptions: bool) -> None:
    """Log, or raise, which connections missed a broadcast; log which receive broadcasts again.

    Args:
        connections: The connections that :func:`reusable` has returned.
        missed: The connections that missed the message, with the reason.
        raise_exceptions: As for :func:`broadcast`.

    Raises:
        Exception: As for :func:`broadcast`.
    """
    if raise_exceptions:
        _raise(missed)
        return
    if _stalls:
        missed_ids = {id(connection) for connection, _ in missed}
        present = {id(connection) for connection in connections}
        for key, stall in list(_stalls.items()):
            connection = stall.connection()
            # A connection that is not open was ignored, and has not received the message.
            if key in present and key not in missed_ids and connection is not None and connection._state == State.OPEN:
                stall.end()
    for connection, why in missed:
        known = _known.get(id(connection))
        if known is None:
            _Stall(connection, why)
        elif known.why == why:
            known.count += 1
        else:
            known.begin(why)


def _raise(missed: list[tuple[Any, str]]) -> None:
    exceptions: list[Exception] = []
    for connection, why in missed:
        kind = ConcurrencyError if why == "fragments" else BlockingIOError if why == "slow" else RuntimeError
        exc = kind(_REASONS[why])
        if why == "failed":
            exc.__cause__ = connection._closed_error()
        exceptions.append(exc)
    if exceptions:
        # Python 3.10 has no exception groups: raise the first exception.
        group = getattr(builtins, "ExceptionGroup", None)
        raise exceptions[0] if group is None else group("skipped broadcast", exceptions)
