"""A thread that is busy with blocking connections lets other threads of the program run."""

from __future__ import annotations

import contextlib
import functools
import threading

import pytest

from support.native import NativeEcho
from support.subject import connect
from support.wake_latency import CONNECTIONS, SIZES, wakes_in_time

pytestmark = [pytest.mark.wirespeed_only("it is about our own reads and writes"), pytest.mark.serial]


def exchange(uri: str, size: int, thread: threading.Thread) -> int:
    count, message = 0, b"x" * size
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(connect(uri + "/", compression=None, max_size=None)) for _ in range(CONNECTIONS)
        ]
        while thread.is_alive():
            for ws in connections:
                ws.send(message)
            for ws in connections:
                assert len(ws.recv()) == size
                count += 1
    return count


@pytest.mark.parametrize("size", SIZES)
def test_a_thread_that_sleeps_wakes_in_time(native_echo: NativeEcho, size: int | None) -> None:
    wakes_in_time(size, functools.partial(exchange, native_echo.uri))
