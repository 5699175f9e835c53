"""Calls that are awaited repeatedly without a pause let the event loop turn."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import wirespeed
from support.asyncio_tools import one_loop
from support.connecting import Connect
from support.native import NativeEcho

pytestmark = pytest.mark.wirespeed_only("websockets leaves this to the caller")

SETTINGS = one_loop()
Repeated = Callable[[], Awaitable[Any]]

# Seconds for which a call is repeated, and turns of the loop in that time. On a busy machine that may be few calls, so
# there is a minimum number of calls, unless there were turns before. A callback ends after 256 KiB at most, of which a
# message of 8 bytes counts for 40: after 6,554 of them. A message may take three turns: the task's own, one by the
# socket, and one that we have requested.
WINDOW = 0.2
TURNS = 2
CALLS = 3 * 6_554 * (TURNS + 1)


async def turns(repeated: Repeated) -> int:
    """Repeats a call for a while and returns the number of turns of another task."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    ticker = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    count = calls = 0
    end = time.monotonic() + WINDOW
    try:
        while time.monotonic() < end or (count < TURNS and calls < CALLS):
            await repeated()
            calls += 1
        return count
    finally:
        ticker.cancel()


async def pieces(*items: str) -> AsyncIterator[str]:
    for item in items:
        yield item


def nowait(ws: Any) -> Repeated:
    async def send() -> None:
        with contextlib.suppress(BlockingIOError):
            ws.send_nowait("x")
        await ws.flush()

    return send


def fragments(ws: Any) -> Repeated:
    async def receive() -> None:
        async for _ in ws.recv_streaming():
            pass

    return receive


SENDING: dict[str, Callable[[Any], Repeated]] = {
    "send nothing": lambda ws: lambda: ws.send(b""),
    "send": lambda ws: lambda: ws.send("x"),
    "send much": lambda ws: lambda: ws.send(bytes(65536)),
    "send fragments": lambda ws: lambda: ws.send(["x", "y"]),
    "send no fragments": lambda ws: lambda: ws.send([]),
    "send asynchronous fragments": lambda ws: lambda: ws.send(pieces("x", "y")),
    "send no asynchronous fragments": lambda ws: lambda: ws.send(pieces()),
    "send_json": lambda ws: lambda: ws.send_json({"x": 1}),
    "send_msgpack": lambda ws: lambda: ws.send_msgpack({"x": 1}),
    "send_many": lambda ws: lambda: ws.send_many(["x", "y", "z"]),
    "send_many nothing": lambda ws: lambda: ws.send_many([]),
    "send_many, asynchronous": lambda ws: lambda: ws.send_many(pieces("x", "y")),
    "send_many nothing, asynchronous": lambda ws: lambda: ws.send_many(pieces()),
    "send_nowait": nowait,
    "flush": lambda ws: ws.flush,
    "ping": lambda ws: ws.ping,
    "pong": lambda ws: ws.pong,
    "pong much": lambda ws: lambda: ws.pong(bytes(125)),
}

RECEIVING: dict[str, Callable[[Any], Repeated]] = {
    "recv": lambda ws: ws.recv,
    "recv decoded": lambda ws: lambda: ws.recv(decode=False),
    "recv_many": lambda ws: ws.recv_many,
    "recv_many one": lambda ws: lambda: ws.recv_many(1),
    "recv_streaming": fragments,
    "async for": lambda ws: ws.__aiter__().__anext__,
}

CLOSED: dict[str, Callable[[Any], Repeated]] = {
    "close": lambda ws: ws.close,
    "wait_closed": lambda ws: ws.wait_closed,
    "async for": lambda ws: lambda: _exhaust(ws),
    "leave": lambda ws: lambda: ws.__aexit__(None, None, None),
}


async def _exhaust(ws: Any) -> None:
    async for _ in ws:
        pass


@pytest.mark.parametrize("name", SENDING)
async def test_sending_yields(name: str, native_echo: NativeEcho, connect: Connect) -> None:
    async with connect(native_echo.uri + "/sink", max_queue=None) as ws:
        assert await turns(SENDING[name](ws)) >= TURNS


@pytest.mark.parametrize("size", [8, 8192])
@pytest.mark.parametrize("name", RECEIVING)
async def test_receiving_yields(name: str, size: int, native_echo: NativeEcho, connect: Connect) -> None:
    async with connect(f"{native_echo.uri}/blast?size={size}", close_timeout=1) as ws:
        assert await turns(RECEIVING[name](ws)) >= TURNS
        ws.abort()


@pytest.mark.parametrize("name", ["recv_json", "recv_msgpack"])
async def test_receiving_values_yields(name: str, connect: Connect) -> None:
    async def handler(ws: Any) -> None:
        with contextlib.suppress(wirespeed.ConnectionClosed):
            while True:
                await ws.send_many(["1"] * 1000)

    async with wirespeed.serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as ws:
            assert await turns(getattr(ws, name)) >= TURNS
            ws.abort()


@pytest.mark.parametrize("name", CLOSED)
async def test_closed(name: str, native_echo: NativeEcho, connect: Connect) -> None:
    async with connect(native_echo.uri) as ws:
        pass
    assert await turns(CLOSED[name](ws)) >= TURNS


async def test_awaiting_pongs_yields(native_echo: NativeEcho, connect: Connect) -> None:
    async with connect(native_echo.uri) as ws:

        async def measure() -> None:
            await (await ws.ping())

        assert await turns(measure) >= TURNS


@pytest.mark.parametrize("name", ["wait_closed", "start_serving", "leave"])
async def test_server(name: str) -> None:
    server = await wirespeed.serve(lambda ws: ws.wait_closed(), "127.0.0.1", 0)
    if name == "start_serving":
        assert await turns(server.start_serving) >= TURNS
    server.close()
    await server.wait_closed()
    if name == "wait_closed":
        assert await turns(server.wait_closed) >= TURNS
    elif name == "leave":
        assert await turns(lambda: server.__aexit__(None, None, None)) >= TURNS


STREAM: dict[str, Callable[[Any, Any], Repeated]] = {
    "read nothing": lambda reader, writer: lambda: reader.read(0),
    "readexactly nothing": lambda reader, writer: lambda: reader.readexactly(0),
    "drain": lambda reader, writer: writer.drain,
    "write and drain": lambda reader, writer: lambda: _write(writer),
}

STREAM_ENDED: dict[str, Callable[[Any, Any], Repeated]] = {
    "read": lambda reader, writer: reader.read,
    "read some": lambda reader, writer: lambda: reader.read(10),
    "readline": lambda reader, writer: reader.readline,
    "async for": lambda reader, writer: lambda: _exhaust(reader),
    "wait_closed": lambda reader, writer: writer.wait_closed,
}


async def _write(writer: Any) -> None:
    writer.write(b"x")
    await writer.drain()


@pytest.mark.parametrize("name", STREAM)
async def test_stream_yields(name: str, native_echo: NativeEcho) -> None:
    reader, writer = await wirespeed.open_stream(native_echo.uri + "/sink")
    assert await turns(STREAM[name](reader, writer)) >= TURNS
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("name", STREAM_ENDED)
async def test_ended_stream_yields(name: str, native_echo: NativeEcho) -> None:
    reader, writer = await wirespeed.open_stream(native_echo.uri)
    writer.close()
    await writer.wait_closed()
    assert await turns(STREAM_ENDED[name](reader, writer)) >= TURNS
