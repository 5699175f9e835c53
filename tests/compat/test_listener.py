"""What listens for a server: ``Server.server``, and a name that servers had."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


def test_what_listens(package: Any) -> None:
    async def main() -> None:
        async with package.asyncio.server.serve(echo, "127.0.0.1", 0) as running:
            listener = running.server
            assert listener.is_serving()
            assert listener.get_loop() is asyncio.get_running_loop()
            assert [sock.fileno() for sock in listener.sockets] == [sock.fileno() for sock in running.sockets]
            uri = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            async with package.asyncio.client.connect(uri) as ws:
                listener.close()
                assert not listener.is_serving()
                assert not running.is_serving()
                assert list(listener.sockets) == []
                with pytest.raises(OSError):
                    await package.asyncio.client.connect(uri)
                # Who is connected stays so.
                await ws.send("x")
                assert await ws.recv() == "x"
            await listener.wait_closed()
        assert running.connections == set()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_serving_by_what_listens(package: Any) -> None:
    async def main() -> None:
        async with package.asyncio.server.serve(echo, "127.0.0.1", 0, start_serving=False) as running:
            assert not running.server.is_serving()
            await running.server.start_serving()
            assert running.server.is_serving()
            uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
            async with package.asyncio.client.connect(uri) as ws:
                await ws.send("x")
                assert await ws.recv() == "x"

    asyncio.run(asyncio.wait_for(main(), 10))


def test_the_old_name_of_blocking_servers(package: Any) -> None:
    with pytest.warns(DeprecationWarning, match="WebSocketServer was renamed to Server"):
        assert package.sync.server.WebSocketServer is package.sync.server.Server
