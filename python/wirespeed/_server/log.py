"""The log of servers, which limits the lines about events that clients can cause thousands of times a second.

:class:`LogThrottle` has no clock: times are arguments, and the caller calls :meth:`LogThrottle.log_due` at the time of
:attr:`LogThrottle.due`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
from typing import TYPE_CHECKING, Any, Protocol

from .._connection import address_text
from ..exceptions import ConnectionClosed, InvalidHandshake
from ..typing import LoggerLike

if TYPE_CHECKING:
    from .accept import AcceptedSocket

__all__ = [
    "LogThrottle",
    "ThrottledLog",
    "is_peer_error",
    "log_handler_error",
    "log_handshake_error",
    "log_hint",
    "log_hook_error",
    "log_refusal",
]

# Seconds to collect the first events of a series, so that its first line already has a count.
_FIRST_DELAY = 1.0

# Seconds between the lines of a series.
_INTERVAL = 60.0

# Maximum number of series that peers can create; further events share one series for each level.
_MAX_SERIES = 64


@dataclasses.dataclass
class _Series:
    due: float
    level: int
    text: str
    arguments: tuple[Any, ...]
    count: int = 0
    is_new: bool = True
    is_logged: bool = False


class LogThrottle:
    """Counts events by series, and logs each series at most once a minute.

    Args:
        logger: The logger.
    """

    def __init__(self, logger: LoggerLike) -> None:
        self._logger = logger
        self._series: dict[object, _Series] = {}

    def add(self, kind: object, now: float, level: int, text: str, *arguments: Any) -> None:
        """Count an event. It is logged later, with the count and the arguments of the last event.

        Args:
            kind: Key of the series; callers use only few keys.
            now: The current time.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        series = self._series.get(kind)
        if series is None:
            series = self._series[kind] = _Series(now + _FIRST_DELAY, level, text, arguments)
        series.count += 1
        series.arguments = arguments

    def add_from_peer(self, origin: object, kind: str, now: float, level: int, text: str, *arguments: Any) -> None:
        """Count an event that a client has caused. The first is logged at once, later ones as a count.

        Args:
            origin: Origin of the client.
            kind: Kind of event, such as the error. If there are too many series, some are counted together.
            now: The current time.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        if self.is_first(origin, kind, now, level, text, *arguments):
            self._logger.log(level, text, *arguments)

    def is_first(self, origin: object, kind: str, now: float, level: int, text: str, *arguments: Any) -> bool:
        """Count an event like :meth:`add_from_peer`; return whether it is the first, which the caller must log.

        Args:
            origin: Origin of the client.
            kind: Kind of event.
            now: The current time.
            level: Level of the log line.
            text: Format string of the log line.
            *arguments: Arguments of the format string.
        """
        if not self._logger.isEnabledFor(level):
            return False
        key: object = (kind, origin)
        if key not in self._series and len(self._series) >= _MAX_SERIES:
            key = level
        series = self._series.get(key)
        if series is None:
            self._series[key] = _Series(now + _INTERVAL, level, text, arguments, is_logged=True)
            return True
        series.count += 1
        series.text, series.arguments = text, arguments
        return False

    @property
    def due(self) -> float | None:
        """The time at which to call :meth:`log_due` next, ``None`` for never."""
        return min((series.due for series in self._series.values()), default=None)

    def log_due(self, now: float) -> None:
        """Log all series that are due.

        Args:
            now: The current time.
        """
        for kind, series in list(self._series.items()):
            if series.due > now:
                continue
            if not series.count:
                # Without an event for a minute, the series ends.
                del self._series[kind]
                continue
            self._log(series)
            series.due = now + _INTERVAL
            series.count = 0
            series.is_new = False

    def finish(self) -> None:
        """Log the series that have no line or no count yet, and forget all series."""
        for series in self._series.values():
            if series.count and series.is_new:
                self._log(series)
        self._series.clear()

    def _log(self, series: _Series) -> None:
        if series.is_logged:
            self._logger.log(series.level, series.text + "; %d more like it", *series.arguments, series.count)
            return
        times = " (%d times)" if series.count > 1 else ""
        arguments = (*series.arguments, series.count) if times else series.arguments
        self._logger.log(series.level, series.text + times, *arguments)


class ThrottledLog(Protocol):
    """The log methods of the handshake limiters of all servers."""

    def throttled_log(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log an event, or count it."""
        ...

    def throttled_log_start(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> bool:
        """Count an event; return whether it is the first of its kind, which the caller must log."""
        ...


def log_hint(data: bytes, is_tls: bool, accepted: AcceptedSocket, limiter: ThrottledLog) -> None:
    """Log that a client speaks plain HTTP instead of TLS, or TLS instead of HTTP: it cannot read a response.

    Args:
        data: The first bytes of the client, which are not a request.
        is_tls: Whether the server expects TLS.
        accepted: The client.
        limiter: Throttles the log.
    """
    # RFC 8446, section 5.1: a handshake record begins with 22 and the version 3.x.
    if not is_tls and data[:2] == b"\x16\x03":
        text = "a client speaks TLS to a port without TLS (%s): it should connect to ws://, or the server needs ssl="
    elif is_tls and data[:4] in (b"GET ", b"HEAD", b"POST"):
        text = "a client speaks plain HTTP to a port with TLS (%s): it should connect to wss:// or https://"
    else:
        return
    ends = address_text(accepted.address)
    with contextlib.suppress(OSError):
        ends += f" -> {address_text(accepted.sock.getsockname())}"
    limiter.throttled_log(accepted.address, text, logging.WARNING, text, ends)


def log_refusal(connection: Any, error: Exception, limiter: ThrottledLog) -> None:
    """Log that a connection was refused.

    Args:
        connection: A server connection.
        error: The reason.
        limiter: Throttles the log.
    """
    text = "connection %s refused: %s"
    limiter.throttled_log(connection.remote_address, f"refused: {error}", logging.INFO, text, connection._label, error)


def log_handshake_error(
    accepted: AcceptedSocket, connection: Any | None, exc: Exception, limiter: ThrottledLog, logger: LoggerLike
) -> None:
    """Log that an opening handshake has failed.

    Args:
        accepted: The client.
        connection: The connection, if it exists already.
        exc: The error.
        limiter: Throttles the log of errors that clients cause.
        logger: Logger for all other errors.
    """
    label = address_text(accepted.address) if connection is None else connection._label
    text = "opening handshake failed (%s): %s"
    reason = str(exc) or type(exc).__name__
    if not is_peer_error(exc):
        _log_local_error(limiter, logger, accepted.address, exc, text, label, reason)
    elif accepted.handshake.is_silent:
        # A port scan or a health check.
        logger.debug("a client has sent nothing (%s): %s", label, reason)
    else:
        # The key is the type only: the message may quote bytes that differ each time.
        limiter.throttled_log(accepted.address, f"failed: {type(exc).__name__}", logging.INFO, text, label, reason)


def log_hook_error(limiter: ThrottledLog, text: str, connection: Any, exc: Exception) -> None:
    """Log an exception of the application before the connection is open."""
    _log_local_error(limiter, connection.logger, connection.remote_address, exc, text, connection._label)


def _log_local_error(
    limiter: ThrottledLog, logger: LoggerLike, address: Any, exc: Exception, text: str, *arguments: Any
) -> None:
    """Log an error of this process with its traceback, at most once for each cause, because clients can repeat it.

    The cause is the set of source lines in the traceback, so different bugs are logged separately. As a set, it does
    not grow when a client controls the depth of a recursion.
    """
    lines = {f"{frame.f_code.co_filename}:{number}" for frame, number in traceback.walk_tb(exc.__traceback__)}
    cause = " ".join([text, type(exc).__name__, *sorted(lines)])
    if limiter.throttled_log_start(address, cause, logging.ERROR, text, *arguments):
        logger.error(text, *arguments, exc_info=exc)


def is_peer_error(exc: Exception) -> bool:
    """Return whether an exception in the opening handshake was caused by the peer or the network.

    Args:
        exc: The exception.
    """
    return isinstance(exc, (ConnectionClosed, InvalidHandshake, OSError, EOFError))


def log_handler_error(connection: Any, exc: Exception) -> None:
    """Log the exception of a handler. Call it before closing the connection, which may take time.

    Args:
        connection: The connection of the handler.
        exc: The exception.
    """
    logger = connection.logger
    # ConnectionClosed of another connection, which the handler uses, is an error like any other.
    if not isinstance(exc, ConnectionClosed) or exc._origin != connection._origin:
        logger.error("connection handler failed (%s)", connection._label, exc_info=exc)
    elif logger.isEnabledFor(logging.DEBUG):
        # The handler was using its connection when it ended, which is normal.
        logger.debug("connection handler ended by the end of its connection (%s)", connection._label, exc_info=exc)
