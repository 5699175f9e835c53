"""Arguments that are wrong: an exception whose text names the argument, before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from interop.checks import no_leaks
from interop.servers import WebSocketsServer
from interop.subject import connect, unix_connect

pytestmark = pytest.mark.wirespeed_only("websockets does not check its arguments")

WRONG_TYPES = {
    "origin": [1, b"https://example.com", ["https://example.com"]],
    "subprotocols": ["chat", b"chat", 1, [1]],
    "compression": [1, True, ["deflate"]],
    "additional_headers": [1, "X: y", [1], {"X": 1}, {1: "y"}],
    "user_agent_header": [1, b"agent", True],
    "proxy": [1, b"http://localhost", ["http://localhost"]],
    "open_timeout": ["1", [1], True],
    "ping_interval": ["1", object()],
    "ping_timeout": ["1", object()],
    "close_timeout": ["1", object()],
    "max_size": ["1", 1.5, [1]],
    "max_fragments": ["1", 1.5],
    "max_queue": ["1", 1.5],
    "ssl": [1, "yes", object()],
    "server_hostname": [1, b"localhost"],
    "sock": [1, "socket", object()],
    "local_addr": ["127.0.0.1", 1],
}

WRONG_VALUES = {
    "origin": ["https://example.com\r\nX-Evil: 1", "https://example.com\n"],
    "subprotocols": [["two words"], ["chat", "chat"], [""], ["a,b"]],
    "compression": ["gzip", ""],
    "additional_headers": [{"X": "a\r\nX-Evil: 1"}, {"X\r\nX-Evil": "1"}, {"": "x"}, {"X Y": "z"}, {"X:": "z"}],
    "user_agent_header": ["a\r\nX-Evil: 1"],
    "open_timeout": [-1, float("nan")],
    "ping_interval": [-1, float("nan")],
    "ping_timeout": [-1, float("nan")],
    "close_timeout": [-1, float("nan")],
    "max_size": [-1],
    "max_fragments": [-1, 0],
    "max_queue": [-1],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{value!r}"[:60]) for name, values in table.items() for value in values
    ]


@pytest.mark.parametrize(("name", "value"), cases(WRONG_TYPES))
def test_wrong_type(server: WebSocketsServer, name: str, value: Any) -> None:
    before = len(server.requests)
    with no_leaks(), pytest.raises(TypeError, match=name) as raised:
        connect(server.uri, **{name: value})
    assert type(value).__name__ in str(raised.value) or "str" in str(raised.value)
    assert len(server.requests) == before


@pytest.mark.parametrize(("name", "value"), cases(WRONG_VALUES))
def test_wrong_value(server: WebSocketsServer, name: str, value: Any) -> None:
    before = len(server.requests)
    with no_leaks(), pytest.raises(ValueError, match=name):
        connect(server.uri, **{name: value})
    assert len(server.requests) == before


def test_unknown_option(server: WebSocketsServer) -> None:
    with pytest.raises(TypeError, match="ping_intervall"):
        connect(server.uri, ping_intervall=1)


@pytest.mark.parametrize("uri", [1, None, b"ws://localhost/"])
def test_uri_of_wrong_type(uri: Any) -> None:
    with pytest.raises(TypeError, match="uri"):
        connect(uri)


@pytest.mark.parametrize(
    "name", ["Upgrade", "Connection", "Sec-WebSocket-Key", "sec-websocket-version", "Sec-WebSocket-Extensions"]
)
def test_headers_of_the_handshake_are_not_for_the_user(server: WebSocketsServer, name: str) -> None:
    with pytest.raises(ValueError, match="(?i)" + name):
        connect(server.uri, additional_headers={name: "spam"})


@pytest.mark.parametrize("value", ["1", [1], object()])
def test_recv_timeout_of_wrong_type(server: WebSocketsServer, value: Any) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            ws.recv(timeout=value)
        with pytest.raises((ValueError, TypeError)):
            ws.recv(timeout=float("nan"))
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_close_of_wrong_type(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        for arguments in [("1000",), (1000, b"bye"), (1000, 1), (None,)]:
            with pytest.raises(TypeError):
                ws.close(*arguments)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_unix_path_with_sock(unix_server: WebSocketsServer) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ValueError, match="sock"):
        unix_connect(unix_server.unix_path, sock=sock)


@pytest.mark.parametrize(
    "options",
    [
        {"open_timeout": 1},
        {"open_timeout": None, "ping_interval": None, "ping_timeout": None, "close_timeout": None},
        {"max_size": None, "max_fragments": None},
        {"max_size": 1000, "max_queue": 1},
        {"max_queue": (16, 4)},
        {"max_queue": None},
        {"max_size": (1 << 20, 1 << 16)},
        {"subprotocols": ()},
        {"additional_headers": None, "user_agent_header": None, "origin": None},
        {"proxy": None},
        {"proxy": True},
        {"compression": "deflate"},
        {"ping_interval": 0.5, "ping_timeout": 1.5, "close_timeout": 0.5},
    ],
    ids=str,
)
def test_good_options(server: WebSocketsServer, options: dict[str, Any]) -> None:
    with connect(server.uri, **options) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"
