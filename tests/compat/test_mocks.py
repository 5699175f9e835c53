"""Mocks that are made by the classes of connections, as in the tests of applications."""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import pytest

from wirespeed.compat.websockets.asyncio import client, server

pytest.importorskip("websockets", minversion="17")

COROUTINES = ("recv", "send", "ping", "pong", "close", "wait_closed")


@pytest.mark.parametrize("name", ["ClientConnection", "ServerConnection"])
def test_coroutine_functions(package: Any, name: str) -> None:
    kind = getattr(getattr(package.asyncio, name[:6].lower()), name)
    for method in COROUTINES:
        assert inspect.iscoroutinefunction(getattr(kind, method)), method
    assert not inspect.iscoroutinefunction(kind.recv_streaming)


@pytest.mark.parametrize("how", [lambda kind: mock.AsyncMock(spec=kind), mock.create_autospec])
async def test_mocks(package: Any, how: Any) -> None:
    ws = how(package.asyncio.client.ClientConnection)
    if how is mock.create_autospec:
        ws = ws.return_value
    ws.recv.return_value = "hello"
    assert await ws.recv() == "hello"
    await ws.send("x")
    await ws.close()
    ws.send.assert_awaited_once_with("x")
    assert isinstance(ws, package.ClientConnection)


def test_connections_have_the_native_methods() -> None:
    class Plain(client.ClientConnection):
        """A class without methods of its own."""

    class Counting(server.ServerConnection):
        async def recv(self, decode: bool | None = None) -> Any:
            return await super().recv(decode)

    kind: Any
    for kind in (client._Made, server._Made, Plain):
        assert not hasattr(kind.recv, "__code__")
        assert not hasattr(kind.send, "__code__")
        assert kind.__name__ in ("ClientConnection", "ServerConnection", "Plain")
    assert Counting.recv.__qualname__.endswith("Counting.recv")
    assert not hasattr(Counting.send, "__code__")


async def test_isinstance_of_public_classes(package: Any) -> None:
    async def handler(ws: Any) -> None:
        assert type(ws).__name__ == "ServerConnection"
        await ws.send(await ws.recv())

    class Loud(package.asyncio.client.ClientConnection):  # type: ignore[misc]
        async def send(self, message: Any, *, text: bool | None = None) -> None:
            await super().send(message.upper(), text=text)

    async with package.asyncio.server.serve(handler, "127.0.0.1", 0) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        for kind, expected in ((None, "x"), (package.ClientConnection, "x"), (Loud, "X")):
            async with package.asyncio.client.connect(uri, create_connection=kind) as ws:
                assert isinstance(ws, package.ClientConnection)
                await ws.send("x")
                assert await ws.recv() == expected
