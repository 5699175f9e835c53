"""The listening object of a server: ``Server.server``, and a former name of the servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("websockets", minversion="17")


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def test_listening_object(package: Any) -> None:
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
            # Open connections stay open.
            await ws.send("x")
            assert await ws.recv() == "x"
        await listener.wait_closed()
    assert running.connections == set()


async def test_serving_by_the_listening_object(package: Any) -> None:
    async with package.asyncio.server.serve(echo, "127.0.0.1", 0, start_serving=False) as running:
        assert not running.server.is_serving()
        await running.server.start_serving()
        assert running.server.is_serving()
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with package.asyncio.client.connect(uri) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"


def test_the_old_name_of_blocking_servers(package: Any) -> None:
    with pytest.warns(DeprecationWarning, match="WebSocketServer was renamed to Server"):
        assert package.sync.server.WebSocketServer is package.sync.server.Server


async def test_serving_forever_by_the_listening_object(package: Any) -> None:
    async with package.asyncio.server.serve(echo, "127.0.0.1", 0, start_serving=False) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        serving = asyncio.create_task(running.server.serve_forever())
        while not running.is_serving():
            await asyncio.sleep(0)
        async with package.asyncio.client.connect(uri) as ws:
            await ws.send("x")
            assert await ws.recv() == "x"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not running.is_serving()


async def plainly(waiting: Coroutine[Any, Any, None]) -> None:
    await waiting


async def with_a_limit(waiting: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait_for(waiting, 10)


async def shielded(waiting: Coroutine[Any, Any, None]) -> None:
    await asyncio.shield(waiting)


async def gathered(waiting: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(waiting, asyncio.sleep(0))


@pytest.mark.parametrize("wait", [plainly, with_a_limit, shielded, gathered])
async def test_waiting_in_a_handler_by_another_task(package: Any, wait: Callable[[Any], Any]) -> None:
    """The listening object waits for connections, not for handlers."""
    returned = asyncio.Event()

    async def handler(ws: Any) -> None:
        await ws.close()
        await wait(ws.server.server.wait_closed())
        returned.set()

    running = await package.asyncio.server.serve(handler, "127.0.0.1", 0)
    async with package.asyncio.client.connect(f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}") as ws:
        running.close()
        await ws.wait_closed()
    await asyncio.wait_for(returned.wait(), 5)
    await running.wait_closed()


async def test_waiting_in_a_handler_with_an_open_connection() -> None:
    """It does not wait for its own connection, but for that of another handler."""
    from wirespeed.compat.websockets.asyncio.client import connect
    from wirespeed.compat.websockets.asyncio.server import serve

    waited = asyncio.Event()

    async def handler(ws: Any) -> None:
        if await ws.recv() == "wait":
            running.server.close()
            await running.server.wait_closed()
            waited.set()
        await ws.send("over")

    async with serve(handler, "127.0.0.1", 0) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with connect(uri) as one, connect(uri) as other:
            await one.send("wait")
            while running.is_serving():
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            assert not waited.is_set()
            await other.send("end")
            await other.wait_closed()
            assert await one.recv() == "over"
            assert waited.is_set()


async def test_waiting_for_connections() -> None:
    """Like ``asyncio.Server`` from Python 3.12 on."""
    from wirespeed.compat.websockets.asyncio.client import connect
    from wirespeed.compat.websockets.asyncio.server import serve

    async with serve(echo, "127.0.0.1", 0) as running:
        async with connect(f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}") as ws:
            running.server.close()
            waiting = asyncio.create_task(running.server.wait_closed())
            await ws.send("x")
            assert await ws.recv() == "x"
            assert not waiting.done()
        await waiting
