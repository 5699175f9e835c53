"""``send_json``, ``recv_json``, ``send_msgpack``, ``recv_msgpack``."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
import sys
from typing import TYPE_CHECKING, Any, Optional

import pytest

from support.asyncio_tools import Run, cancelled, spin
from support.connecting import Connect
from support.frames import BINARY, TEXT, Close, Frame, binary, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions

pytestmark = pytest.mark.wirespeed_only("ours")
if TYPE_CHECKING:
    import msgspec
else:
    msgspec = pytest.importorskip("msgspec")


VALUES = [None, True, 0, -1, 1.5, "", "é€😀", [], [1, [2, {"three": 3}]], {}, {"a": None, "b": [1, 2]}]


@dataclasses.dataclass
class Order:
    symbol: str
    price: float
    note: Optional[str] = None  # noqa: UP045 - msgspec reads it at run time, in Python 3.10 too


def calls(ws: Any, codec: str) -> tuple[Any, Any]:
    return getattr(ws, f"send_{codec}"), getattr(ws, f"recv_{codec}")


@pytest.fixture(params=["json", "msgpack"])
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_values(server: WebSocketsServer, connect: Connect, codec: str) -> None:
    async with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        for value in VALUES:
            assert await send(value) is None
            assert await recv() == value


async def test_typed(server: WebSocketsServer, connect: Connect, codec: str) -> None:
    class Point(msgspec.Struct):
        x: int
        y: int = 0

    when = datetime.datetime(2020, 2, 29, 12, 30, tzinfo=datetime.timezone.utc)
    cases = [
        (Order("EURUSD", 1.5), Order),
        (Point(1), Point),
        ([Point(1, 2)] * 3, list[Point]),
        (when, datetime.datetime),
    ]
    async with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        for value, kind in cases:
            await send(value)
            assert await recv(type=kind) == value
            await send(value)
            assert await recv(kind) == value


async def test_on_the_wire(scripted: Scripted, connect: Connect) -> None:
    """JSON is text, as JavaScript wants it; MessagePack is binary."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text('{"a": 1}') + binary(b'{"a": 2}') + binary(b"\x81\xa1a\x03"))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, compression=None) as ws:
        await ws.send_json({"a": 1})
        await ws.send_msgpack({"a": 1})
        assert await ws.recv_json() == {"a": 1}
        assert await ws.recv_json() == {"a": 2}
        assert await ws.recv_msgpack() == {"a": 3}
    frames, on_the_wire = await server.wait_result()
    assert on_the_wire == Close(1000)
    assert [frame.opcode for frame in frames] == [TEXT, BINARY]
    assert json.loads(frames[0].payload) == {"a": 1}
    assert frames[1] == Frame(BINARY, b"\x81\xa1a\x01")


async def test_value_that_cannot_be_encoded(server: WebSocketsServer, connect: Connect, codec: str) -> None:
    async with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        with pytest.raises(TypeError):
            await send(object())
        await send("still open")
        # No type that msgspec knows; the type is checked before the message arrives.
        with pytest.raises(TypeError):
            await recv(type={1: 2})
        assert await recv() == "still open"


async def test_message_that_cannot_be_decoded(scripted: Scripted, connect: Connect, codec: str) -> None:
    """Only this message fails; the next ones are received."""
    good = text('"good"') if codec == "json" else binary(b"\xa4good")
    bad = text("{") if codec == "json" else binary(b"\x92\x01")

    def script(wire: Wire) -> Any:
        wire.accept(then=bad + binary(b"\xc1") + good + good)
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        _, recv = calls(ws, codec)
        for _ in range(2):
            with pytest.raises(msgspec.DecodeError):
                await recv()
        with pytest.raises(msgspec.ValidationError):
            await recv(type=int)
        assert await recv(type=str) == "good"
    assert await server.wait_result() == ([], Close(1000))


async def test_cancelled(server: WebSocketsServer, connect: Connect, codec: str) -> None:
    async with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        task = asyncio.ensure_future(recv())
        await spin()
        assert await cancelled(task)
        await send([1])
        assert await recv() == [1]


async def test_closed(server: WebSocketsServer, connect: Connect, codec: str) -> None:
    ws = await connect(server.uri)
    await ws.close()
    send, recv = calls(ws, codec)
    with pytest.raises(exceptions.ConnectionClosedOK):
        await send(1)
    with pytest.raises(exceptions.ConnectionClosedOK):
        await recv()


def test_without_msgspec(
    server: WebSocketsServer, run: Run, connect: Connect, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception names the package to install, and no message is lost."""
    from wirespeed._connection import Codec
    from wirespeed.asyncio import _connection as module

    for name in ("msgspec", "msgspec.json", "msgspec.msgpack"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(module, codec.upper(), Codec(codec))

    async def main() -> None:
        async with connect(server.uri) as ws:
            send, recv = calls(ws, codec)
            with pytest.raises(ImportError, match=r"wirespeed\[codecs\]"):
                await send({"a": 1})
            await ws.send("x")
            with pytest.raises(ImportError, match=r"wirespeed\[codecs\]"):
                await recv()
            assert await ws.recv() == "x"

    run(main)
