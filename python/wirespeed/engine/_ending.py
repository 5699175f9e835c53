"""How long handlers are waited for once an engine ends: at its end, and when it is told to end at once, not for ever.

Knows no handlers: whoever calls them says how they are left.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from ._log import Log

__all__ = ["LAST", "Interrupted", "Patience", "interrupting"]

LAST = 1.0
"""Seconds that handlers have after the end: some are told only then of sessions that were cut off."""


class Interrupted(BaseException):
    """The main thread leaves what it is in, as with :class:`KeyboardInterrupt`."""


class Patience:
    """Until when handlers are waited for: for ever, unless anybody has said when the engine ends."""

    def __init__(self) -> None:
        # What is called under it takes no other lock; a handler of a signal may come here too.
        self._lock = threading.RLock()
        self._at: float | None = None
        self._told: list[Callable[[float], object]] = []

    def end(self, at: float) -> None:
        """Say when the engine ends, by the monotonic clock; the earliest counts. For any thread."""
        at += LAST
        with self._lock:
            if self._at is not None and self._at <= at:
                return
            self._at = at
            for tell in list(self._told):
                tell(at)

    @contextlib.contextmanager
    def telling(self, tell: Callable[[float], object]) -> Iterator[None]:
        """Have a function called, in any thread, with the moment from which on nothing is waited for."""
        with self._lock:
            self._told.append(tell)
            if self._at is not None:
                tell(self._at)
        try:
            yield
        finally:
            with self._lock:
                self._told.remove(tell)


@contextlib.contextmanager
def interrupting(patience: Patience, interrupt: Callable[[], bool], after: float, logger: Log) -> Iterator[None]:
    """Have this context left when the patience is over, whatever is called in it: for the main thread.

    Args:
        patience: Until when it is waited.
        interrupt: Has the handler of SIGTERM raise :class:`Interrupted`, before the signal is sent; false: it cannot.
        after: Seconds more.
        logger: Where that is said.
    """
    # Of the context, by those who would interrupt it when it is over.
    lock = threading.Lock()
    over = threading.Event()
    thread = threading.get_ident()

    def wait(at: float) -> None:
        # Again and again: what is interrupted may catch it.
        while not over.wait(max(at - time.monotonic(), 0)):
            with lock:
                if not over.is_set() and interrupt():
                    signal.pthread_kill(thread, signal.SIGTERM)
            at = time.monotonic() + LAST

    def tell(at: float) -> None:
        threading.Thread(target=wait, args=(at + after,), name="wirespeed-end", daemon=True).start()

    left = False
    try:
        with patience.telling(tell):
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
        time.sleep(0)  # whoever has just interrupted has done so, and here is where it is heard
    except Interrupted:
        return False
    return True
