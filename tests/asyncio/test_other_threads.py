"""What a busy loop leaves to other threads of the program."""

from __future__ import annotations

import asyncio
import functools
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from interop.native import NativeEcho

Run = Callable[..., Any]
Connect = Callable[..., Any]

pytestmark = pytest.mark.wirespeed_only("it is about our own reads and writes")

CONNECTIONS = 8
SLEEPS = 120
TRIES = 3
# Later than a program beside it, which needs no lock of this interpreter. After 5 ms a thread would ask for the lock.
LATE_SECONDS = 0.0025
SLEEPER = f"""
import statistics, time

def sleep():
    begun = time.perf_counter()
    time.sleep(0.005)
    return time.perf_counter() - begun - 0.005

def late():
    return statistics.median(sleep() for _ in range({SLEEPS}))
"""


async def exchange(connect: Connect, uri: str, size: int, thread: threading.Thread) -> int:
    """Makes round trips on some connections until the thread has ended; returns how many."""

    async def one() -> int:
        count, message = 0, b"x" * size
        async with connect(uri + "/", compression=None, max_size=None) as ws:
            while thread.is_alive():
                await ws.send(message)
                assert len(await ws.recv()) == size
                count += 1
        return count

    return sum(await asyncio.gather(*(one() for _ in range(CONNECTIONS))))


@pytest.mark.parametrize("size", [100, 500_000, None])
def test_a_thread_that_sleeps_wakes_in_time(
    native_echo: NativeEcho, run: Run, connect: Connect, size: int | None
) -> None:
    # None: another one each time, of any magnitude up to 1 MB.
    size = size or int(100 * 10_000 ** random.random())
    names: dict[str, Any] = {}
    exec(SLEEPER, names)
    measured: list[float] = []

    def measure() -> None:
        # The machine may be busy: as late as a program of its own is at the same time, anybody may be.
        command = [sys.executable, "-c", f"{SLEEPER}\nprint(late())"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            late: float = names["late"]()
            measured.append(late - float(other.communicate(timeout=60)[0]))

    for _ in range(TRIES):
        thread = threading.Thread(target=measure)
        thread.start()
        count = run(functools.partial(exchange, connect, native_echo.uri, size, thread))
        thread.join()
        assert count > 2 * CONNECTIONS
    late = statistics.fmean(measured)
    assert late < LATE_SECONDS, f"beside round trips of {size} bytes a thread woke {late * 1000:.1f} ms late"
