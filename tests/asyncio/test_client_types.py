"""The public surface: types of results, and names."""

from __future__ import annotations

import asyncio
import enum
import inspect
import uuid
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, one_loop
from support.connecting import Connect
from support.servers import WebSocketsServer
from support.subject import IS_WIRESPEED

METHODS = ["send", "recv", "recv_streaming", "ping", "pong", "close", "wait_closed", "__aiter__", "__aenter__"]
PROPERTIES = [
    "close_code",
    "close_reason",
    "id",
    "latency",
    "local_address",
    "logger",
    "remote_address",
    "request",
    "response",
    "state",
    "subprotocol",
]
OURS = ["recv_many", "recv_nowait", "send_many", "send_nowait", "flush", "abort", "stats", "fileno"]

SETTINGS = one_loop()


async def test_methods_of_websockets_exist(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for name in METHODS:
            assert callable(getattr(ws, name))
        for name in PROPERTIES:
            assert not callable(getattr(ws, name)), name


@pytest.mark.wirespeed_only("ours")
async def test_own_methods_exist(server: WebSocketsServer, connect: Connect, setting: Setting) -> None:
    import wirespeed

    async with connect(server.uri) as ws:
        assert type(ws) is wirespeed.ClientConnection
        for name in OURS:
            assert callable(getattr(ws, name))
        assert ws.io_backend == setting.io_backend
        assert ws.fileno() >= 0


async def test_types(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        await ws.send("x")
        assert type(await ws.recv()) is str
        await ws.send(b"x")
        assert type(await ws.recv()) is bytes
        assert isinstance(ws.latency, float)
        assert isinstance(ws.state, enum.IntEnum)
        assert isinstance(ws.id, uuid.UUID)
        assert type(await (await ws.ping())) is float
    assert isinstance(ws.close_code, int)
    assert isinstance(ws.close_reason, str)


async def test_properties_cannot_be_set(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        for name in ("close_code", "state", "subprotocol", "local_address"):
            with pytest.raises(AttributeError):
                setattr(ws, name, 1)


@pytest.mark.wirespeed_only("ours")
async def test_repr_describes_the_connection(server: WebSocketsServer, connect: Connect) -> None:
    async with connect(server.uri) as ws:
        assert "OPEN" in repr(ws)
    assert "CLOSED" in repr(ws)


@pytest.mark.wirespeed_only("ours")
async def test_str_subclass_and_bytes_subclass(server: WebSocketsServer, connect: Connect) -> None:
    class Text(str):
        __slots__ = ()

    class Data(bytes):
        __slots__ = ()

    async with connect(server.uri) as ws:
        await ws.send(Text("x"))
        assert await ws.recv() == "x"
        await ws.send(Data(b"x"))
        assert await ws.recv() == b"x"


@pytest.mark.wirespeed_only("ours")
def test_not_in_a_thread_without_a_loop(server: WebSocketsServer, run: Run, connect: Connect) -> None:
    """A coroutine of the connection is driven only by its loop."""

    async def main() -> Any:
        ws = await connect(server.uri)
        await ws.close()
        return ws

    ws = run(main)

    async def other() -> None:
        with pytest.raises(Exception):  # noqa: B017 - closed, or another loop
            await ws.recv()

    asyncio.run(other())


@pytest.mark.wirespeed_only("ours")
async def test_connection_of_another_loop(server: WebSocketsServer, connect: Connect, setting: Setting) -> None:
    """A task of another loop that awaits it gets an exception, as for every future."""
    loop = asyncio.get_running_loop()
    async with connect(server.uri) as ws:

        async def other() -> None:
            with pytest.raises(RuntimeError):
                await ws.recv()

        await loop.run_in_executor(None, lambda: asyncio.run(other()))
        await ws.send("still open")
        assert await ws.recv() == "still open"


@pytest.mark.wirespeed_only("websockets has no signature to speak of")
def test_methods_have_signatures_and_docs() -> None:
    import wirespeed

    for name in [*METHODS, *OURS, "recv_json", "send_json", "recv_msgpack", "send_msgpack"]:
        method = getattr(wirespeed.ClientConnection, name)
        inspect.signature(method)
    assert list(inspect.signature(wirespeed.ClientConnection.send).parameters) == [
        "self",
        "message",
        "text",
        "compress",
    ]
    assert list(inspect.signature(wirespeed.ClientConnection.recv).parameters) == ["self", "decode"]


def test_all_settings_are_run() -> None:
    """Guards the settings of this folder."""
    from support import asyncio_tools

    assert {str(setting) for setting in asyncio_tools.SETTINGS} >= (
        {"asyncio-fd", "asyncio-transport"} if IS_WIRESPEED else {"asyncio-transport"}
    )
