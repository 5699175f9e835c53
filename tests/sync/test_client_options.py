"""Wrong arguments: an exception names the argument, before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from support.checks import no_leaks
from support.options import GOOD, HANDSHAKE_HEADERS, WRONG_TYPES, WRONG_VALUES, cases
from support.servers import WebSocketsServer
from support.subject import connect, unix_connect

pytestmark = pytest.mark.wirespeed_only("websockets does not check its arguments")


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
        connect(server.uri, ping_intervall=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("uri", [1, None, b"ws://localhost/"])
def test_uri_of_wrong_type(uri: Any) -> None:
    with pytest.raises(TypeError, match="uri"):
        connect(uri)


@pytest.mark.parametrize("name", HANDSHAKE_HEADERS)
def test_handshake_headers_are_refused(server: WebSocketsServer, name: str) -> None:
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
                ws.close(*arguments)  # type: ignore[arg-type]
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_unix_path_with_sock(unix_server: WebSocketsServer) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ValueError, match="sock"):
        unix_connect(unix_server.unix_path, sock=sock)


@pytest.mark.parametrize(
    "options",
    GOOD,
    ids=str,
)
def test_good_options(server: WebSocketsServer, options: dict[str, Any]) -> None:
    with connect(server.uri, **options) as ws:
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


@pytest.mark.wirespeed_only("websockets passes other arguments to create_connection")
@pytest.mark.parametrize("later", [False, True], ids=["in-the-class", "later"])
def test_iteration_calls_an_overridden_recv(server: WebSocketsServer, monkeypatch: Any, later: bool) -> None:
    import wirespeed.sync

    class Mine(wirespeed.sync.ClientConnection):
        pass

    def recv(self: Any, timeout: float | None = None, decode: bool | None = None) -> Any:
        return f"mine: {wirespeed.sync.ClientConnection.recv(self, timeout, True)}"

    if not later:
        monkeypatch.setattr(Mine, "recv", recv)
    with connect(f"{server.uri}/count?n=2", create_connection=Mine) as ws:
        monkeypatch.setattr(Mine, "recv", recv)
        assert list(ws) == ["mine: 0", "mine: 1"]


def test_iteration_uses_a_recv_that_was_set_on_the_connection(server: WebSocketsServer) -> None:
    with connect(f"{server.uri}/count?n=2") as ws:
        original = ws.recv
        setattr(ws, "recv", lambda *_: f"mine: {original()!s}")  # noqa: B010
        assert list(ws) == ["mine: 0", "mine: 1"]


@pytest.mark.parametrize("how", ["function", "class", "other type"])
def test_create_connection_that_fails(scripted: Any, how: str) -> None:
    """The server sees the end, although the exception, and thus its frames, are kept."""
    import wirespeed.sync

    class Failing(wirespeed.sync.ClientConnection):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            raise LookupError("mine")

    def fail(*args: Any, **options: Any) -> Any:
        raise LookupError("mine")

    def server_connection(*args: Any, **options: Any) -> Any:
        return wirespeed.sync.ServerConnection(*args, **options)

    def script(wire: Any) -> bytes:
        wire.accept()
        return wire.read_to_end()  # type: ignore[no-any-return]

    server = scripted(script)
    made = {"function": fail, "class": Failing, "other type": server_connection}[how]
    with no_leaks():
        with pytest.raises(TypeError if how == "other type" else LookupError) as kept:
            connect(server.uri, create_connection=made)
        server.join()
    assert server.results == [b""]
    assert kept.value is not None
