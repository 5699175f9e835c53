"""The log of an engine, where a failure of the application's logging ends nothing but its record.

A handler that raises, as on a full disk, would else end the thread that logs, or that calls the handlers of an engine.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Any

__all__ = ["Log"]

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter  # no generic class in Python 3.10


class Log(Adapter):
    """What a logger does, but that no ``Exception`` of its handlers and filters leaves it.

    As with exceptions that the handlers of ``logging`` catch themselves, ``logging.raiseExceptions`` decides whether
    it is printed.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a record, as do all other methods."""
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                # There is no place left for an error of that.
                with contextlib.suppress(Exception):
                    traceback.print_exc()
