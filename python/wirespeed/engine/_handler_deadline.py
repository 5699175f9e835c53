"""The deadline of handlers when an engine ends. Without a drain or stop, there is none.

Knows no handlers: their callers register a callback, which abandons or cancels them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from ._log import Log

__all__ = ["GRACE_PERIOD", "HandlerDeadline", "Interrupted", "interrupt_at_deadline"]

GRACE_PERIOD = 1.0
"""Seconds that handlers get after the end of the engine, in which they learn about sessions that were cut off."""


class Interrupted(BaseException):
    """Raised in the main thread to leave a handler, as :class:`KeyboardInterrupt` would."""


class HandlerDeadline:
    """The time until which handlers are waited for: unlimited until :meth:`end` sets it."""

    def __init__(self) -> None:
        # Callbacks under it must take no other lock. It is reentrant, as a signal handler may call `end`.
        self._lock = threading.RLock()
        self._at: float | None = None
        self._callbacks: list[Callable[[float], object]] = []

    def end(self, at: float) -> None:
        """Set when the engine ends, by the monotonic clock; the earliest call counts. From any thread."""
        at += GRACE_PERIOD
        with self._lock:
            if self._at is not None and self._at <= at:
                return
            self._at = at
            for callback in list(self._callbacks):
                callback(at)

    @contextlib.contextmanager
    def notifying(self, callback: Callable[[float], object]) -> Iterator[None]:
        """Have a function called, in any thread, with the deadline, once it is known."""
        with self._lock:
            self._callbacks.append(callback)
            if self._at is not None:
                callback(self._at)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)


@contextlib.contextmanager
def interrupt_at_deadline(
    deadline: HandlerDeadline, interrupt: Callable[[], bool], after: float, logger: Log
) -> Iterator[None]:
    """Leave this context when the deadline has passed, even during a call. For the main thread.

    Args:
        deadline: The deadline.
        interrupt: Prepares the handler of SIGTERM to raise :class:`Interrupted`; false: it cannot.
        after: Additional seconds.
        logger: Logs the interruption.
    """
    # Protects `over` against the interrupting thread: no signal is sent after the context has ended.
    lock = threading.Lock()
    over = threading.Event()
    thread = threading.get_ident()

    def wait(at: float) -> None:
        # Repeated, because the interrupted code may catch the exception.
        while not over.wait(max(at - time.monotonic(), 0)):
            with lock:
                if not over.is_set() and interrupt():
                    signal.pthread_kill(thread, signal.SIGTERM)
            at = time.monotonic() + GRACE_PERIOD

    def callback(at: float) -> None:
        threading.Thread(target=wait, args=(at + after,), name="wirespeed-end", daemon=True).start()

    left = False
    try:
        with deadline.notifying(callback):
            yield
    except Interrupted:
        left = True
    finally:
        while not _is_settled(over, lock):
            pass
    if left:
        logger.error("a handler has not returned in time: it was interrupted")


def _is_settled(over: threading.Event, lock: threading.Lock) -> bool:
    try:
        over.set()
        with lock:
            pass
        time.sleep(0)  # a signal that was sent before is handled here
    except Interrupted:
        return False
    return True
