"""The log of an engine: a thread that passes native records to ``logging``."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from .._native import NativeLogs

__all__ = ["Log", "start_logging"]

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter  # no generic class in Python 3.10


SUPPRESSED_INTERVAL = 1.0
"""Seconds between two checks whether suppressed records are due."""


class Log(Adapter):
    """A logger whose methods raise no ``Exception`` of its handlers and filters.

    Without it, a logging handler that raises, as on a full disk, would end the thread that logs or calls the engine's
    handlers.

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


def start_logging(logs: NativeLogs, logger: Log) -> None:
    """Start a thread that passes native log records to a logger, and ends with the native threads.

    Args:
        logs: The source of the records.
        logger: The logger.
    """
    # A daemon thread that waits for a descriptor: it delays neither the engine nor the end of the interpreter.
    threading.Thread(target=_log, args=(logs, logs.wake_fd(), logger), name="wirespeed-log", daemon=True).start()


def _log(logs: NativeLogs, waker: int, logger: Log) -> None:
    """Log all records until the engine ends."""
    try:
        ready = b"\0"
        poll = select.poll()  # `select` fails with descriptors from 1,024 on
        poll.register(waker, select.POLLIN)
        while ready:
            while not poll.poll(SUPPRESSED_INTERVAL * 1000 if logs.has_suppressed else None):
                _log_records(logs, logger)
            ready = os.read(waker, 4096)
            _log_records(logs, logger)
    finally:
        os.close(waker)


def _log_records(logs: NativeLogs, logger: Log) -> None:
    for level, text, suppressed in logs.take():
        if suppressed:
            logger.log(level, "%s (and %d more since the last time)", text, suppressed)
        else:
            logger.log(level, "%s", text)
