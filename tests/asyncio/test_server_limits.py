"""Clients that send too much, read too little, or do not answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from support.asyncio_tools import Setting, settled, soon
from support.checks import within
from support.frames import BINARY, CLOSE, CONT, PING, PONG, TEXT, Close, close, deflate
from support.load_scaling import load_scaled
from support.serving import Raw, echo, idle, logged, masked, serve, small_sends
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("the server is ours")


DEFLATE = "Sec-WebSocket-Extensions: permessage-deflate"


# Sizes


@pytest.mark.parametrize("how", ["declared", "fragments", "inflated"])
@pytest.mark.no_leaks
async def test_max_size(setting: Setting, caplog: pytest.LogCaptureFixture, how: str) -> None:
    ends: list[Any] = []

    async def handler(ws: Any) -> None:
        try:
            await echo(ws)
        except exceptions.ConnectionClosedError as exc:
            ends.append((exc.sent and exc.sent.code, "max_size" in str(exc)))
            raise

    async with serve(setting, handler, max_size=1000) as server:
        with await Raw.open(server, "/", *([DEFLATE] if how == "inflated" else [])) as raw:
            await raw.send(masked(BINARY, bytes(1000)))
            await raw.frame()
            if how == "declared":
                await raw.send(masked(BINARY, b"", length=1001))
            elif how == "fragments":
                await raw.send(masked(BINARY, bytes(600), fin=False) + masked(CONT, bytes(401)))
            else:
                await raw.send(masked(BINARY, deflate(bytes(1001)), rsv=4))
            frames, end = await raw.until_close()
            assert frames == []
            assert end is not None
            assert end.code == 1009
    assert [code for code, _ in ends] == [1009]
    assert logged(caplog) == []


async def test_decompression_bomb(setting: Setting) -> None:
    """20 MB that travel as 20 kB are not inflated."""
    bomb = deflate(bytes(20_000_000))
    async with serve(setting) as server:
        with await Raw.open(server, "/", DEFLATE) as raw, within(3):
            await raw.send(masked(BINARY, bomb, rsv=4))
            end = (await raw.until_close())[1]
            assert end is not None
            assert end.code == 1009


async def test_max_fragments(setting: Setting) -> None:
    async with serve(setting, max_fragments=3) as server:
        with await Raw.open(server) as raw:
            message = masked(TEXT, b"a", fin=False) + masked(CONT, b"b", fin=False)
            await raw.send(message + masked(CONT, b"c"))
            assert (await raw.frame()).payload == b"abc"
            await raw.send(message + masked(CONT, b"c", fin=False) + masked(CONT, b"d"))
            end = (await raw.until_close())[1]
            assert end is not None
            assert end.code in (1008, 1009)


# Time


async def test_ping(setting: Setting) -> None:
    """A client that answers stays; pings are sent at the interval."""
    async with serve(setting, idle, ping_interval=0.05, ping_timeout=0.5) as server:
        with await Raw.open(server) as raw:
            [ws] = server.connections
            for _ in range(4):
                frame = await raw.frame()
                assert frame.opcode == PING
                await raw.send(masked(PONG, frame.payload))
            await soon(lambda: ws.latency > 0)
            assert ws.state.name == "OPEN"


@pytest.mark.parametrize("client", ["silent", "talks"])
@pytest.mark.no_leaks
async def test_ping_timeout(setting: Setting, caplog: pytest.LogCaptureFixture, client: str) -> None:
    """Messages do not answer a ping."""
    async with serve(setting, echo, ping_interval=0.05, ping_timeout=0.1, close_timeout=0.1) as server:
        with await Raw.open(server) as raw:
            start = time.monotonic()
            if client == "talks":
                await raw.send(masked(TEXT, b"x"))
            frames, end = await raw.until_close()
            assert end is not None
            assert end.code == 1011
            assert 0.1 < time.monotonic() - start < load_scaled(3)
            assert PING in {frame.opcode for frame in frames}
            assert await raw.rest() == b""
        await soon(lambda: server.connections == set())
    assert logged(caplog) == []


async def test_no_pings(setting: Setting) -> None:
    async with serve(setting, echo, ping_interval=None) as server:
        with await Raw.open(server) as raw:
            await asyncio.sleep(0.1)
            await raw.send(masked(TEXT, b"x"))
            assert (await raw.frame()).opcode == TEXT


async def test_no_ping_timeout(setting: Setting) -> None:
    """A client that never answers stays."""
    async with serve(setting, echo, ping_interval=0.02, ping_timeout=None) as server:
        with await Raw.open(server) as raw:
            assert (await raw.frame()).opcode == PING
            await asyncio.sleep(0.1)
            await raw.send(masked(TEXT, b"x"))
            while (frame := await raw.frame()).opcode == PING:
                pass
            assert frame.payload == b"x"


@pytest.mark.parametrize("who", ["server", "client"])
@pytest.mark.no_leaks
async def test_close_timeout(setting: Setting, who: str) -> None:
    """A client that neither answers the close frame nor ends the connection."""

    async def handler(ws: Any) -> None:
        if who == "client":
            await ws.wait_closed()

    async with serve(setting, handler, close_timeout=0.15) as server:
        with within(2, at_least=0 if who == "client" else 0.15), await Raw.open(server) as raw:
            if who == "client":
                await raw.send(masked(CLOSE, close(1000)[2:]))
            assert (await raw.until_close())[1] == Close(1000)
            await raw.rest()
            await soon(lambda: not server._tasks)


# Backpressure


@pytest.mark.parametrize("limit", [2**15, (2**20, 2**10), 0])
@pytest.mark.no_leaks
async def test_sending_to_a_client_that_does_not_read(setting: Setting, limit: Any) -> None:
    """``send`` waits; the memory is ``write_limit`` plus the data that one turn of the loop combines."""
    sent: list[int] = []
    high = limit[0] if isinstance(limit, tuple) else limit

    async def handler(ws: Any) -> None:
        for number in range(600):
            await ws.send(number.to_bytes(2, "big") + bytes(9_998))
            sent.append(number)

    options: dict[str, Any] = {"write_limit": limit, "compression": None}
    async with serve(setting, handler, None, None, sock=small_sends(), **options) as server:
        with await Raw.open(server, receive_buffer=4096) as raw:
            [ws] = server.connections
            await soon(lambda: sent)
            assert await settled(lambda: len(sent)) < 600
            assert ws.stats()["send_queue_bytes"] <= high + 2**16
            frames, end = await raw.until_close()
            assert [int.from_bytes(frame.payload[:2], "big") for frame in frames] == list(range(600))
            assert end == Close(1000)


@pytest.mark.no_leaks
async def test_handler_that_does_not_receive(setting: Setting) -> None:
    """The client's sending blocks; nothing is lost."""
    go = asyncio.Event()
    received: list[int] = []

    async def handler(ws: Any) -> None:
        await go.wait()
        async for message in ws:
            received.append(len(message))

    options: dict[str, Any] = {"max_queue": 4, "max_queue_bytes": 100_000}
    async with serve(setting, handler, **options) as server:
        with await Raw.open(server) as raw:
            [ws] = server.connections
            message = masked(BINARY, bytes(50_000))
            sending = asyncio.ensure_future(_send_all(raw, message, 400))
            await soon(lambda: ws.stats()["bytes_received"])
            assert await settled(lambda: ws.stats()["bytes_received"]) < 4_000_000
            assert not sending.done()
            assert ws.stats()["receive_queue_bytes"] < 2_000_000
            go.set()
            await sending
            await raw.send(masked(CLOSE, close(1000)[2:]))
            assert (await raw.until_close())[1] == Close(1000)
        await soon(lambda: not server._tasks)
    assert received == [50_000] * 400


async def _send_all(raw: Raw, data: bytes, count: int) -> None:
    for _ in range(count):
        await raw.loop.sock_sendall(raw.sock, data)


@pytest.mark.no_leaks
async def test_slow_client_does_not_block_others(setting: Setting) -> None:
    """Only the handler of the slow client waits."""

    async def handler(ws: Any) -> None:
        if ws.request.path == "/deaf":
            while True:
                await ws.send(bytes(100_000))
        await echo(ws)

    async with serve(setting, handler, close_timeout=0.1, compression=None) as server:
        deaf = [await Raw.open(server, "/deaf", receive_buffer=4096) for _ in range(5)]
        with await Raw.open(server) as raw, within(3):
            for number in range(50):
                await raw.send(masked(TEXT, b"%d" % number))
                assert (await raw.frame()).payload == b"%d" % number
        for other in deaf:
            other.close()
