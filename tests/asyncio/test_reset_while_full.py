"""A peer resets TCP while both directions are full: reading is paused, and a task waits to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Setting, settled
from support.checks import within
from support.connecting import Connect
from support.frames import frame
from support.scripted import Scripted, Wire
from support.serving import Raw, serve
from support.slow import fill
from support.subject import IS_WIRESPEED, exceptions

OPTIONS: dict[str, Any] = {"compression": None, "ping_interval": None, "max_queue": 2, "close_timeout": 20}


async def send(ws: Any) -> None:
    while True:
        await ws.send(bytes(100_000))


async def send_many(ws: Any) -> None:
    while True:
        await ws.send_many([bytes(100_000)] * 3)


async def flush(ws: Any) -> None:
    for _ in range(100):
        ws.send_nowait(bytes(100_000))
    await ws.flush()


async def blocked(ws: Any, sending: Callable[[Any], Any]) -> asyncio.Task[None]:
    """Sends until the peer's buffer is full; returns the waiting task."""
    task: asyncio.Task[None] = asyncio.ensure_future(sending(ws))
    if IS_WIRESPEED:
        await settled(lambda: ws.stats()["messages_sent"])
    else:
        await asyncio.sleep(0.5)
    assert not task.done()
    return task


async def check(ws: Any, task: asyncio.Task[None]) -> None:
    """Checks that the task raises soon, and that the connection is over."""
    with within(5), pytest.raises(exceptions.ConnectionClosedError):
        await task
    with within(5):
        await ws.wait_closed()


@pytest.mark.parametrize("sending", [send, *([send_many, flush] if IS_WIRESPEED else [])])
async def test_client(scripted: Scripted, connect: Connect, sending: Callable[[Any], Any]) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        fill(wire)
        server.pause()
        wire.reset()

    server = scripted(script, receive_buffer=4096)
    more = {"write_limit": 20_000_000} if sending is flush else {}
    ws = await connect(server.uri, **OPTIONS, **more)
    await asyncio.to_thread(server.wait_reached)
    task = await blocked(ws, sending)
    server.release.set()
    await check(ws, task)


@pytest.mark.wirespeed_only("the server is ours")
async def test_server(setting: Setting) -> None:
    """The handler ends, and with it the server."""
    handled: list[Any] = []

    async def handle(ws: Any) -> None:
        await ready.wait()
        task = await blocked(ws, send)
        waiting.set()
        await check(ws, task)
        handled.append(ws)

    ready, waiting = asyncio.Event(), asyncio.Event()
    async with serve(setting, handle, **OPTIONS) as server:
        raw = await Raw.open(server, receive_buffer=4096)
        message = frame(2, bytes(10_000), mask=bytes(4))
        with pytest.raises(asyncio.TimeoutError):
            while True:
                await asyncio.wait_for(raw.loop.sock_sendall(raw.sock, message), 0.3)
        ready.set()
        await asyncio.wait_for(waiting.wait(), 20)
        raw.reset()
        with within(8):
            server.close()
            await server.wait_closed()
    assert len(handled) == 1
