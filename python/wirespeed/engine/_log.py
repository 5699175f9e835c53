"""A logger that exceptions of the application's logging configuration cannot break.

Without it, a logging handler that raises, as on a full disk, would end the thread that logs or calls the engine's
handlers.
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
    """A logger whose methods raise no ``Exception`` of its handlers and filters.

    As for exceptions that the handlers of ``logging`` catch themselves, ``logging.raiseExceptions`` decides whether
    they are printed.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log a record; all other methods call this one."""
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                # An error of printing cannot be reported anywhere.
                with contextlib.suppress(Exception):
                    traceback.print_exc()
