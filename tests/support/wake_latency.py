"""Measures how late a sleeping thread wakes beside a busy one."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["CONNECTIONS", "SIZES", "wakes_in_time"]

CONNECTIONS = 8
# Bytes of a message; None: a random number each time, of any magnitude up to 1 MB.
SIZES = [100, 500_000, None]

_SLEEPS = 120
_TRIES = 3
# Later than a program beside it, which does not need this interpreter's lock. After 5 ms a thread would request the
# lock.
_LATE_SECONDS = 0.0025
_SLEEPER = f"""
import statistics, time

def sleep():
    begun = time.perf_counter()
    time.sleep(0.005)
    return time.perf_counter() - begun - 0.005

def late():
    return statistics.median(sleep() for _ in range({_SLEEPS}))
"""


def wakes_in_time(size: int | None, exchange: Callable[[int, threading.Thread], int]) -> None:
    """Asserts that a sleeping thread wakes in time.

    Args:
        size: Of a message, one of :data:`SIZES`.
        exchange: Makes round trips of this many bytes on :data:`CONNECTIONS` connections in this thread until the other
            one has ended; returns their number.
    """
    size = size or int(100 * 10_000 ** random.random())
    names: dict[str, Any] = {}
    exec(_SLEEPER, names)
    measured: list[float] = []

    def measure() -> None:
        # The machine may be busy: the lateness of a separate program at the same time is allowed.
        command = [sys.executable, "-c", f"{_SLEEPER}\nprint(late())"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            late: float = names["late"]()
            measured.append(late - float(other.communicate(timeout=60)[0]))

    for _ in range(_TRIES):
        thread = threading.Thread(target=measure)
        thread.start()
        count = exchange(size, thread)
        thread.join()
        assert count > 2 * CONNECTIONS
    late = statistics.fmean(measured)
    assert late < _LATE_SECONDS, f"beside round trips of {size} bytes a thread woke {late * 1000:.1f} ms late"
