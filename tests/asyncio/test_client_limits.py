"""Limits on the data that a client accepts from a peer."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import pytest

from support.asyncio_tools import Run
from support.checks import describe
from support.connecting import Connect
from support.faults import DEFLATE
from support.frames import BINARY, CONT, binary, deflate, frame
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


@pytest.mark.parametrize("max_size", [1, 125, 126, 1000, 65_535, 65_536, 1 << 20])
async def test_max_size(server: WebSocketsServer, connect: Connect, max_size: int) -> None:
    async with connect(server.uri, max_size=max_size, compression=None) as ws:
        await ws.send(bytes(max_size))
        assert len(await ws.recv()) == max_size
        await ws.send(bytes(max_size + 1))
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            await ws.recv()
    assert raised.value.sent is not None
    assert raised.value.sent.code == 1009


async def test_max_size_counts_bytes_not_characters(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri, max_size=100) as ws:
        await ws.send("é" * 50)
        assert await ws.recv() == "é" * 50
        await ws.send("é" * 51)
        with pytest.raises(exceptions.ConnectionClosedError):
            await ws.recv()


async def test_max_size_does_not_limit_sending(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + "/sink", max_size=100) as ws:
        await ws.send(bytes(100_000))
        await ws.send("?")
        assert await ws.recv() == "100000"


async def test_no_max_size(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri + f"/binary?size={5 << 20}", max_size=None) as ws:
        assert len(await ws.recv()) == 5 << 20


@pytest.mark.wirespeed_only("the text is ours")
async def test_size_error_names_the_option(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri + "/binary?size=2000", max_size=1000)
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    await ws.close()
    told = describe(raised.value)
    assert "max_size" in told
    assert "1000" in told


@pytest.mark.wirespeed_only("websockets limits fragments by an environment variable")
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_max_fragments(scripted: Scripted, run: Run, connect: Connect, limit: int) -> None:
    def message(count: int) -> bytes:
        return b"".join(frame(CONT if index else BINARY, b"x", fin=index == count - 1) for index in range(count))

    def script(wire: Wire) -> Any:
        wire.accept(then=message(limit) + message(limit + 1))
        return wire.read_until_close()

    server = scripted(script)

    async def main() -> str:
        ws = await connect(server.uri, max_fragments=limit)
        assert await ws.recv() == b"x" * limit
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            await ws.recv()
        await ws.close()
        return describe(raised.value)

    assert "max_fragments" in run(main)
    assert server.result[1].code == 1009


@pytest.mark.wirespeed_only("websockets limits fragments by an environment variable")
async def test_no_max_fragments(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=binary(b"", fin=False) + frame(CONT, b"x", fin=False) * 10_000 + frame(CONT))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, max_fragments=None) as ws:
        assert await ws.recv() == b"x" * 10_000


def peak() -> int:
    """The most memory that this process has ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("receiving", [True, False], ids=["receiving", "idle"])
def test_decompression_bomb_is_refused(scripted: Scripted, run: Run, connect: Connect, receiving: bool) -> None:
    """256 MiB are compressed to 256 kB: the memory of the process must not grow by that."""
    bomb = deflate(bytes(256 << 20))

    def script(wire: Wire) -> Any:
        wire.accept(DEFLATE, then=binary(bomb, rsv=4))
        return wire.read_until_close()

    server = scripted(script)

    async def main() -> None:
        ws = await connect(server.uri)
        if not receiving:
            await ws.wait_closed()
        with pytest.raises(exceptions.ConnectionClosedError):
            await ws.recv()
        await ws.close()

    before = peak()
    run(main)
    assert server.result[1].code == 1009
    assert peak() - before < 64 << 20


def test_declared_length_is_not_allocated(scripted: Scripted, run: Run, connect: Connect) -> None:
    """Without a limit a peer may announce any length; memory is allocated as the bytes arrive."""

    def script(wire: Wire) -> Any:
        wire.accept(then=frame(BINARY, b"some", length=1 << 40))
        server.pause()

    server = scripted(script)

    async def main() -> None:
        ws = await connect(server.uri, max_size=None, close_timeout=0.1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ws.recv(), 0.2)
        assert peak() - before < 256 << 20
        server.release.set()
        with pytest.raises(exceptions.ConnectionClosedError):
            await ws.recv()
        await ws.close()

    before = peak()
    run(main)
