"""A plain Python version of the native selector over ``select.epoll``: the oracle for the real one.

It serves no connections. ``OracleSelector`` is the public selector on top of it.
"""

from __future__ import annotations

import contextlib
import math
import select
import selectors
import time
from collections import deque
from typing import Any, cast

from wirespeed.asyncio.loop import Selector

__all__ = ["NATIVE_CLASSES", "OracleSelector", "PythonSelector"]

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Ready = list[tuple[selectors.SelectorKey, int]]


class PythonSelector:
    def __init__(self, busy_poll: float = 0.0) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._busy_poll = busy_poll
        self.attached: tuple[Any, ...] = ()

    def attach(self, ready: deque[Any], scheduled: list[Any], loop: Any) -> None:
        self.attached = (ready, scheduled, loop)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def register(self, fd: int, events: int, key: selectors.SelectorKey) -> None:
        self._epoll.register(fd, mask(events))
        self._keys[fd] = key

    def modify(self, fd: int, events: int, key: selectors.SelectorKey) -> None:
        # The standard library's selectors make no system call either when only the data changes.
        if events != self._keys[fd].events:
            self._epoll.modify(fd, mask(events))
        self._keys[fd] = key

    def unregister(self, fd: int) -> None:
        del self._keys[fd]
        with contextlib.suppress(OSError):  # it was closed, or is another file now
            self._epoll.unregister(fd)

    def get_key(self, fd: int) -> selectors.SelectorKey:
        return self._keys[fd]

    def map(self) -> dict[int, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None) -> Ready:
        start = time.monotonic()
        limit = math.inf if timeout is None else max(timeout, 0.0)
        while True:
            elapsed = time.monotonic() - start
            if elapsed >= min(self._busy_poll, limit):
                break
            if found := self._poll(0):
                return found
        # In whole milliseconds, and never less than requested.
        return self._poll(-1 if limit == math.inf else math.ceil(max(limit - elapsed, 0.0) * 1000) / 1000)

    def _poll(self, timeout: float) -> Ready:
        found = []
        for fd, events in self._epoll.poll(timeout, len(self._keys) or 1):
            if (key := self._keys.get(fd)) is not None:
                # Errors and hang-ups wake both directions.
                ready = bool(events & ~select.EPOLLOUT) * READ | bool(events & ~select.EPOLLIN) * WRITE
                found.append((key, ready & key.events))
        return found

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
        self.attached = ()


def mask(events: int) -> int:
    return bool(events & READ) * select.EPOLLIN | bool(events & WRITE) * select.EPOLLOUT


class OracleSelector(Selector):
    native_class = cast(Any, PythonSelector)


NATIVE_CLASSES: list[Any] = [PythonSelector, *([Selector.native_class] if Selector.native_class is not None else [])]
"""What a selector may be made of here: the oracle, and the real one where there is epoll."""
