"""Leaving early: closed generators and loops of both packages, towards a slow peer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")

from support.frames import CLOSE, Close, close
from support.scripted import Disconnected, ScriptedServer, Wire

SIZE = 50_000


class Peer:
    """A server that reads nothing until it is released, then everything, and answers the close frame."""

    def __init__(self, scripted: Callable[..., ScriptedServer], package: Any) -> None:
        self.server = scripted(self.script, receive_buffer=4096)
        uri = self.server.uri
        self.connect: Callable[[], Any] = lambda: package.asyncio.client.connect(
            uri, compression=None, ping_interval=None
        )
        self.accepted = 0
        self.received = 0

    def script(self, wire: Wire) -> Close | None:
        wire.accept()
        self.server.pause()
        with contextlib.suppress(Disconnected):
            while (frame := wire.read_frame()).opcode != CLOSE:
                self.received += 1
            farewell = Close.parse(frame.payload)
            wire.send(close(1000))
            return farewell
        return None

    async def fill(self, ws: Any) -> None:
        """Sends until it waits for the peer."""
        with contextlib.suppress(asyncio.TimeoutError):
            while True:
                await asyncio.wait_for(ws.send(bytes(SIZE)), 0.2)
                self.accepted += 1
        asyncio.get_running_loop().call_soon(self.server.release.set)

    async def check(self) -> None:
        while not self.server.results:
            await asyncio.sleep(0.005)
        assert self.server.result == Close(1011)
        # Messages of a send() that was cancelled then are not counted.
        assert self.received >= self.accepted > 10


@pytest.fixture
def peer(scripted: Callable[..., ScriptedServer], package: Any) -> Peer:
    return Peer(scripted, package)


async def close_a_generator(peer: Peer) -> None:
    generating = feed(peer)
    await anext(generating)
    await generating.aclose()


async def drop_a_generator(peer: Peer) -> None:
    async for _ in feed(peer):
        break
    gc.collect()


async def feed(peer: Peer) -> AsyncGenerator[None, None]:
    async with peer.connect() as ws:
        await peer.fill(ws)
        yield


async def break_(peer: Peer) -> None:
    async for ws in peer.connect():
        await peer.fill(ws)
        break


async def return_(peer: Peer) -> None:
    async for ws in peer.connect():
        await peer.fill(ws)
        return


async def cancel(peer: Peer) -> None:
    async def use() -> None:
        async for ws in peer.connect():
            await peer.fill(ws)
            filled.set()
            await asyncio.sleep(60)

    filled = asyncio.Event()
    task = asyncio.ensure_future(use())
    await filled.wait()
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("leave", [close_a_generator, drop_a_generator, break_, return_, cancel])
async def test_leaving_early(peer: Peer, leave: Callable[[Peer], Any]) -> None:
    await leave(peer)
    await peer.check()
