"""``send_json``, ``recv_json``, ``send_msgpack``, ``recv_msgpack`` of the blocking connection."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest

from support.checks import as_close, within
from support.frames import BINARY, TEXT, Close, Frame, binary, text
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions

pytestmark = pytest.mark.wirespeed_only("ours")
msgspec = pytest.importorskip("msgspec")


@dataclasses.dataclass
class Order:
    symbol: str
    price: float


@pytest.fixture(params=["json", "msgpack"])
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def calls(ws: Any, codec: str) -> tuple[Any, Any]:
    return getattr(ws, f"send_{codec}"), getattr(ws, f"recv_{codec}")


@pytest.mark.parametrize("compress", [None, True])
def test_values(server: WebSocketsServer, codec: str, compress: bool | None) -> None:
    values = [None, True, -1, 1.5, "é€😀", [], [1, [2, {"three": 3}]], {"a": None, "b": [1, 2] * 50}]
    with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        for value in values:
            assert send(value, compress=compress) is None
            assert recv(timeout=10) == value


def test_typed(server: WebSocketsServer, codec: str) -> None:
    with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        for value, kind in [(Order("EURUSD", 1.5), Order), ([Order("X", 0.0)], list[Order])]:
            for _ in range(2):
                send(value)
            assert recv(kind, 10) == value
            assert recv(type=kind, timeout=10) == value


def test_on_the_wire(scripted: Scripted) -> None:
    """JSON is text, MessagePack is binary; received messages may be either."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text('{"a": 1}') + binary(b'{"a": 2}') + binary(b"\x81\xa1a\x03"))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, compression=None) as ws:
        ws.send_json({"a": 1})
        ws.send_msgpack({"a": 1})
        assert ws.recv_json() == {"a": 1}
        assert ws.recv_json() == {"a": 2}
        assert ws.recv_msgpack() == {"a": 3}
    frames, on_the_wire = server.result
    assert on_the_wire == Close(1000)
    assert [frame.opcode for frame in frames] == [TEXT, BINARY]
    assert json.loads(frames[0].payload) == {"a": 1}
    assert frames[1] == Frame(BINARY, b"\x81\xa1a\x01")


def test_wrong_value_or_type_loses_no_message(server: WebSocketsServer, codec: str) -> None:
    with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        with pytest.raises(TypeError):
            send(object())
        send([1])
        with pytest.raises(TypeError):
            recv(type={1: 2})
        with pytest.raises(msgspec.ValidationError):
            recv(type=list[str], timeout=10)
        send([2])
        assert recv(timeout=10) == [2]


def test_timeout(server: WebSocketsServer, codec: str) -> None:
    with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        with within(5), pytest.raises(TimeoutError):
            recv(timeout=0.01)
        send([1])
        assert recv(timeout=10) == [1]


def test_closed(server: WebSocketsServer, codec: str) -> None:
    ws = connect(server.uri)
    ws.close()
    send, recv = calls(ws, codec)
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        send(1)
    assert as_close(raised.value.rcvd) == Close(1000)
    with pytest.raises(exceptions.ConnectionClosedOK):
        recv()


def test_without_msgspec(server: WebSocketsServer, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception names the package to install, and no message is lost."""
    from wirespeed._connection import Codec
    from wirespeed.sync import _connection as module

    for name in ("msgspec", "msgspec.json", "msgspec.msgpack"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(module, codec.upper(), Codec(codec))
    with connect(server.uri) as ws:
        send, recv = calls(ws, codec)
        with pytest.raises(ImportError, match=r"wirespeed\[codecs\]"):
            send({"a": 1})
        ws.send("x")
        with pytest.raises(ImportError, match=r"wirespeed\[codecs\]"):
            recv(timeout=10)
        assert ws.recv(timeout=10) == "x"
