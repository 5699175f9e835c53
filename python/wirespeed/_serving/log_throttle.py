"""What can happen ten thousand times a second, in the log once a minute.

There is no clock in here: times are arguments, and whoever has a timer calls when something is due.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..typing import LoggerLike

__all__ = ["LogThrottle"]

# Seconds in which the first few of a series come together, so that the first line has a number already.
_FIRST = 1.0

# Seconds between the lines of a series that goes on.
_INTERVAL = 60.0

# How many series are told apart, if peers can make new ones; the others are one.
_MANY = 64


@dataclasses.dataclass
class _Series:
    due: float
    level: int
    text: str
    arguments: tuple[Any, ...]
    count: int = 0
    is_new: bool = True
    is_told: bool = False


class LogThrottle:
    """Counts what happens, for a log that is not flooded.

    Args:
        logger: The log.
    """

    def __init__(self, logger: LoggerLike) -> None:
        self._logger = logger
        self._series: dict[object, _Series] = {}

    def add(self, kind: object, now: float, level: int, text: str, *arguments: Any) -> None:
        """Count one. It is logged later, with the number of those that came until then, and the text of the last.

        Args:
            kind: What is one series; there must be few of them.
            now: The present time.
            level: Of the line in the log.
            text: The line, with places for the arguments.
            *arguments: What it says of this one.
        """
        series = self._series.get(kind)
        if series is None:
            series = self._series[kind] = _Series(now + _FIRST, level, text, arguments)
        series.count += 1
        series.arguments = arguments

    def add_of(self, who: object, kind: str, now: float, level: int, text: str, *arguments: Any) -> None:
        """Count one that somebody has caused. The first is logged at once, those that follow it later, as a number.

        Args:
            who: Who it was.
            kind: What it was, such as the error; of very many, some are told together.
            now: The present time.
            level: Of the line in the log.
            text: The line, with places for the arguments.
            *arguments: What it says of this one.
        """
        if self.begins(who, kind, now, level, text, *arguments):
            self._logger.log(level, text, *arguments)

    def begins(self, who: object, kind: str, now: float, level: int, text: str, *arguments: Any) -> bool:
        """Count one as :meth:`add_of` does; return whether it is a first one, which the caller has to log.

        Args:
            who: Who it was.
            kind: What it was.
            now: The present time.
            level: Of the line in the log.
            text: The line, with places for the arguments.
            *arguments: What it says of this one.
        """
        if not self._logger.isEnabledFor(level):
            return False
        key: object = (kind, who)
        if key not in self._series and len(self._series) >= _MANY:
            key = level
        series = self._series.get(key)
        if series is None:
            self._series[key] = _Series(now + _INTERVAL, level, text, arguments, is_told=True)
            return True
        series.count += 1
        series.text, series.arguments = text, arguments
        return False

    @property
    def due(self) -> float | None:
        """When :meth:`tell` has something to do, ``None`` for never."""
        return min((series.due for series in self._series.values()), default=None)

    def tell(self, now: float) -> None:
        """Log what is due.

        Args:
            now: The present time.
        """
        for kind, series in list(self._series.items()):
            if series.due > now:
                continue
            if not series.count:
                # A minute without: the series is over.
                del self._series[kind]
                continue
            self._say(series)
            series.due = now + _INTERVAL
            series.count = 0
            series.is_new = False

    def finish(self) -> None:
        """Log what would not be said any more: of which there is no line yet, or no number."""
        for series in self._series.values():
            if series.count and series.is_new:
                self._say(series)
        self._series.clear()

    def _say(self, series: _Series) -> None:
        if series.is_told:
            self._logger.log(series.level, series.text + "; %d more like it", *series.arguments, series.count)
            return
        times = " (%d times)" if series.count > 1 else ""
        arguments = (*series.arguments, series.count) if times else series.arguments
        self._logger.log(series.level, series.text + times, *arguments)
