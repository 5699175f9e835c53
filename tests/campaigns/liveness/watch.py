"""Resources and reports that a run must not leave: descriptors, threads, warnings, log records, unraisable
exceptions.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from support.checks import open_descriptors
from support.threads import native_threads

from .record import Poke

_LOGGERS = ("asyncio", "wirespeed", "wirespeed.client", "wirespeed.server", "websockets", "concurrent.futures")

_BROADCASTS = ("skipped broadcast", "broadcasts arrive again", "connection closed without broadcasts")


class Watch(logging.Handler):
    """Collects complaints while it is active."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # Records of broadcast about slow clients, and about calls interrupted on purpose.
        if not text.startswith(_BROADCASTS) and not (record.exc_info and record.exc_info[0] is Poke):
            if record.exc_info and record.exc_info[1] is not None:
                text += "\n" + "".join(traceback.format_exception(record.exc_info[1]))
            self.found.append(f"logged by {record.name}: {text}")

    def unraisable(self, report: Any) -> None:
        if report.exc_type is not Poke:
            text = "".join(traceback.format_exception(report.exc_value or report.exc_type))
            self.found.append(f"unraisable in {report.object!r}: {report.err_msg or ''} {text}")

    def loop_handler(self, _loop: Any, context: dict[str, Any]) -> None:
        """Records a report of an event loop."""
        exc = context.get("exception")
        if isinstance(exc, Poke):
            return
        text = context["message"]
        if exc is not None:
            text += "\n" + "".join(traceback.format_exception(exc))
        text += "".join(f"\n{name}: {context[name]!r}" for name in ("task", "future", "handle") if name in context)
        self.found.append(f"the loop reports: {text}")

    def thread_hook(self, report: Any) -> None:
        text = "".join(traceback.format_exception(report.exc_value))
        self.found.append(f"a thread ended with {text}")


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Watches the block; afterwards ``found`` of the result has the errors."""
    watch = Watch()
    before, threads = open_descriptors(), set(threading.enumerate())
    native = native_threads()
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = watch.unraisable, watch.thread_hook
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    kept = [(logger, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(watch)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield watch
            gc.collect()
            _wait_for_the_end(watch, before, threads, native)
        watch.found += [f"warned: {warning.category.__name__}: {warning.message}" for warning in warned]
    finally:
        for logger, propagate in kept:
            logger.removeHandler(watch)
            logger.propagate = propagate
        sys.unraisablehook, threading.excepthook = hooks


def _wait_for_the_end(watch: Watch, before: dict[int, str], threads: set[threading.Thread], native: set[int]) -> None:
    deadline = time.monotonic() + 2
    while True:
        leaked = {number: name for number, name in open_descriptors().items() if before.get(number) != name}
        running = set(threading.enumerate()) - threads
        workers = native_threads() - native
        if not leaked and not running and not workers:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    watch.found += [f"descriptor {number} is left open: {name}" for number, name in leaked.items()]
    watch.found += [f"thread {thread.name} is left running" for thread in running]
    watch.found += [f"native thread {number} is left running" for number in workers]
