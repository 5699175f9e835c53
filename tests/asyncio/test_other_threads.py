"""A busy loop lets other threads of the program run."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from support.asyncio_tools import Run
from support.connecting import Connect
from support.native import NativeEcho
from support.wake_latency import CONNECTIONS, SIZES, wakes_in_time

pytestmark = [pytest.mark.wirespeed_only("it is about our own reads and writes"), pytest.mark.serial]


async def exchange(connect: Connect, uri: str, size: int, thread: threading.Thread) -> int:
    async def one() -> int:
        count, message = 0, b"x" * size
        async with connect(uri + "/", compression=None, max_size=None) as ws:
            while thread.is_alive():
                await ws.send(message)
                assert len(await ws.recv()) == size
                count += 1
        return count

    return sum(await asyncio.gather(*(one() for _ in range(CONNECTIONS))))


@pytest.mark.parametrize("size", SIZES)
def test_sleeping_thread_wakes_in_time(native_echo: NativeEcho, run: Run, connect: Connect, size: int | None) -> None:
    wakes_in_time(size, lambda size, thread: run(functools.partial(exchange, connect, native_echo.uri, size, thread)))
