"""The public surface: types of results, names, and the tree of exceptions."""

from __future__ import annotations

import enum
import inspect

import pytest

from support.servers import WebSocketsServer
from support.subject import connect, exceptions

METHODS = ["send", "recv", "recv_streaming", "ping", "pong", "close", "__iter__", "__enter__", "__exit__"]
PROPERTIES = [
    "close_code",
    "close_reason",
    "id",
    "latency",
    "local_address",
    "remote_address",
    "request",
    "response",
    "state",
    "subprotocol",
]
OURS = ["recv_many", "recv_nowait", "send_many", "abort", "stats"]

# Name, and the names of all bases that users may catch.
TREE = {
    "ConnectionClosed": ["WebSocketException"],
    "ConnectionClosedOK": ["ConnectionClosed", "WebSocketException"],
    "ConnectionClosedError": ["ConnectionClosed", "WebSocketException"],
    "InvalidURI": ["WebSocketException"],
    "InvalidProxy": ["WebSocketException"],
    "InvalidHandshake": ["WebSocketException"],
    "SecurityError": ["InvalidHandshake"],
    "HeaderLineTooLong": ["SecurityError"],
    "TooManyHeaders": ["SecurityError"],
    "ProxyError": ["InvalidHandshake"],
    "InvalidProxyMessage": ["ProxyError"],
    "InvalidProxyStatus": ["ProxyError"],
    "InvalidMessage": ["InvalidHandshake"],
    "InvalidStatus": ["InvalidHandshake"],
    "InvalidHeader": ["InvalidHandshake"],
    "InvalidHeaderFormat": ["InvalidHeader"],
    "InvalidHeaderValue": ["InvalidHeader"],
    "InvalidUpgrade": ["InvalidHeader"],
    "NegotiationError": ["InvalidHandshake"],
    "DuplicateParameter": ["NegotiationError"],
    "InvalidParameterName": ["NegotiationError"],
    "InvalidParameterValue": ["NegotiationError"],
    "ProtocolError": ["WebSocketException"],
    "PayloadTooBig": ["WebSocketException"],
    "ConcurrencyError": ["WebSocketException"],
}


@pytest.mark.parametrize("name", TREE)
def test_exception_tree(name: str) -> None:
    exception = getattr(exceptions, name)
    for base in TREE[name]:
        assert issubclass(exception, getattr(exceptions, base))


def test_surface(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        for name in METHODS:
            assert callable(getattr(ws, name))
        for name in PROPERTIES:
            assert not callable(getattr(ws, name)), name


@pytest.mark.wirespeed_only("ours")
def test_our_surface(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        for name in OURS:
            assert callable(getattr(ws, name))


def test_types(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        ws.send("x")
        assert type(ws.recv(timeout=5)) is str
        ws.send(b"x")
        assert type(ws.recv(timeout=5)) is bytes
        assert isinstance(ws.latency, float)
        assert isinstance(ws.state, enum.IntEnum)
    assert isinstance(ws.close_code, int)
    assert isinstance(ws.close_reason, str)


def test_context_manager_gives_the_connection(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    with ws as entered:
        assert entered is ws


def test_properties_cannot_be_set(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        for name in ("close_code", "state", "subprotocol", "local_address"):
            with pytest.raises(AttributeError):
                setattr(ws, name, 1)


@pytest.mark.wirespeed_only("websockets passes what it does not know to the socket module")
def test_connect_has_a_signature() -> None:
    """Keyword-only, so that editors and ``help`` show every option."""
    parameters = inspect.signature(connect).parameters
    assert next(iter(parameters)) == "uri"
    options = [parameter for name, parameter in parameters.items() if name != "uri"]
    assert {parameter.kind for parameter in options} == {inspect.Parameter.KEYWORD_ONLY}
    wanted = {
        "sock", "ssl", "server_hostname", "origin", "subprotocols", "compression", "additional_headers",
        "user_agent_header", "proxy", "proxy_ssl", "proxy_server_hostname", "open_timeout", "ping_interval",
        "ping_timeout", "close_timeout", "max_size", "max_queue", "max_fragments", "local_addr",
    }  # fmt: skip
    assert wanted <= set(parameters)
    defaults = {
        name: parameters[name].default
        for name in ("open_timeout", "ping_interval", "ping_timeout", "close_timeout", "max_size")
    }
    assert defaults == {
        "open_timeout": 10,
        "ping_interval": 20,
        "ping_timeout": 20,
        "close_timeout": 10,
        "max_size": 2**20,
    }


@pytest.mark.wirespeed_only("ours")
def test_repr_says_what_it_is(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        assert "OPEN" in repr(ws) or "open" in repr(ws)
    assert "CLOSED" in repr(ws) or "closed" in repr(ws)


@pytest.mark.wirespeed_only("ours")
def test_str_subclass_and_bytes_subclass(server: WebSocketsServer) -> None:
    class Text(str):
        __slots__ = ()

    class Data(bytes):
        __slots__ = ()

    with connect(server.uri) as ws:
        ws.send(Text("x"))
        assert ws.recv(timeout=5) == "x"
        ws.send(Data(b"x"))
        assert ws.recv(timeout=5) == b"x"
