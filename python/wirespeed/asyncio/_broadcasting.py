"""One message to many connections."""

from __future__ import annotations

import builtins
import time
import weakref
from collections.abc import Collection, Iterable
from typing import Any, Literal

from .._connection.state import State
from .._native import broadcast as _broadcast
from ..exceptions import ConcurrencyError
from ..typing import DataLike, LoggerLike
from ._connection import Connection

__all__ = ["broadcast", "kept", "report"]

_TEXTS = {
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
    """Send a message to many connections, without waiting for any.

    It is encoded once, compressed at most once for each way of compressing that was negotiated, and written with one
    system call for each connection. Connections that are not open are passed over.

    Args:
        connections: The connections; those of clients may be among them.
        message: ``str`` for a text message, bytes-like for a binary message.
        text: ``True`` to send bytes as text, ``False`` to send ``str`` as binary.
        raise_exceptions: Whether to raise an ``ExceptionGroup`` of one exception for each connection that did not get
            the message, in Python 3.10 the first of them. Otherwise the first message that a connection misses is
            logged, and when it gets them again, or is closed, how many there were.
        slow: What to do with a connection for which more than ``write_limit`` waits to be sent, because its peer does
            not read: ``"skip"`` to leave this message out, ``"drop"`` to end it at once, ``"close"`` to close it with
            code 1013.

    Returns:
        How many connections the message was sent to.

    Raises:
        TypeError: The message, or a connection, has another type.
    """
    if slow not in ("skip", "drop", "close"):
        raise ValueError(f'slow must be "skip", "drop" or "close", not {slow!r}')
    connections = kept(connections)
    sent, missed = _broadcast(connections, message, text, slow)
    report(connections, missed, raise_exceptions)
    return sent


# Lines in the log of that many seconds, of all connections together.
_LINES = 20
_INTERVAL = 10.0


class _Lines:
    """No more lines than somebody reads, however many connections are slow, or come anew to be so."""

    def __init__(self) -> None:
        self._since = -_INTERVAL
        self._count = 0
        self._left_out = 0

    def warn(self, logger: LoggerLike, text: str, *arguments: Any) -> None:
        now = time.monotonic()
        if now - self._since >= _INTERVAL:
            self._since, self._count = now, 0
        if self._count >= _LINES:
            self._left_out += 1
            return
        self._count += 1
        if self._left_out:
            text, arguments = text + "; %d lines like it were left out", (*arguments, self._left_out)
            self._left_out = 0
        if self._count == _LINES:
            # There may never be another to tell of it.
            text, arguments = text + "; more like it in the next %d s are left out", (*arguments, _INTERVAL)
        logger.warning(text, *arguments)


_lines = _Lines()


class _Stall:
    """A connection that gets no broadcasts for a time: a line when that begins, and one when it ends.

    A line for each message would be as many as a peer likes. When the time is over, this is kept for the next one:
    each connection has one at most, as nothing but its end can take back what waits for that end.
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
        _lines.warn(self._logger, "skipped broadcast (%s): %s", self._label, _TEXTS[why])

    def end(self, what: str = "broadcasts arrive again") -> None:
        self.why = None
        if _stalls.get(self._key) is self:
            del _stalls[self._key]
        if self.count > 1:
            _lines.warn(self._logger, "%s (%s): %d were skipped", what, self._label, self.count)

    def _gone(self, _: object) -> None:
        if _known.get(self._key) is self:
            del _known[self._key]
            if self.why is not None:
                self.end("connection closed without broadcasts")


# By the id of the connection: those that have ever missed one, until they are closed or forgotten.
_known: dict[int, _Stall] = {}

# Those of them that have missed the last one.
_stalls: dict[int, _Stall] = {}


def kept(connections: Iterable[Any]) -> Iterable[Any]:
    """Return the connections of a broadcast in a form that can be gone through twice, if that will be needed.

    Args:
        connections: What the user passed.
    """
    is_iterator = isinstance(connections, Iterable) and not isinstance(connections, Collection)
    return list(connections) if _stalls and is_iterator else connections


def report(connections: Iterable[Any], missed: list[tuple[Any, str]], raise_exceptions: bool) -> None:
    """Tell who has missed a broadcast, and who gets them again.

    Args:
        connections: Those that it was meant for: what :func:`kept` has returned.
        missed: Those that have missed it, and why.
        raise_exceptions: As for :func:`broadcast`.

    Raises:
        Exception: As for :func:`broadcast`.
    """
    if raise_exceptions:
        _raise(missed)
        return
    if _stalls:
        told = {id(connection) for connection, _ in missed}
        present = {id(connection) for connection in connections}
        for key, stall in list(_stalls.items()):
            connection = stall.connection()
            # One that is not open was passed over.
            if key in present and key not in told and connection is not None and connection._state == State.OPEN:
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
        exc = kind(_TEXTS[why])
        if why == "failed":
            exc.__cause__ = connection._closed_error()
        exceptions.append(exc)
    if exceptions:
        # Python 3.10 has no groups: there, the first stands for all.
        group = getattr(builtins, "ExceptionGroup", None)
        raise exceptions[0] if group is None else group("skipped broadcast", exceptions)
