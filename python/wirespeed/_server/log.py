"""Limits the log lines about events that clients can cause thousands of times a second.

It has no clock: times are arguments, and the caller calls :meth:`LogThrottle.log_due` at the time of
:attr:`LogThrottle.due`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..typing import LoggerLike

__all__ = ["LogThrottle"]

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
