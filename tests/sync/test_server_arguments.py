"""Wrong arguments of the blocking server: the error is raised immediately, and names the argument."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path
from typing import Any, cast

import pytest

from support.checks import no_leaks
from support.options import cases
from support.subject import IS_WIRESPEED, exceptions
from support.threads import echo, serving

pytestmark = pytest.mark.wirespeed_only("the server is ours")

if IS_WIRESPEED:
    from wirespeed import TLS
    from wirespeed.sync import serve, unix_serve
else:
    TLS = Any


async def coroutine(*_: Any) -> None:
    pass


WRONG_TYPES: dict[str, list[Any]] = {
    "handler": [None, 1],
    "host": [1, b"localhost", [], [1], [None]],
    "port": ["8765", 1.5, True],
    "origins": ["http://a", [1], 1],
    "subprotocols": ["chat", b"chat", 1, [1]],
    "select_subprotocol": [1],
    "compression": [1, True],
    "process_request": [1],
    "process_response": [1],
    "server_header": [1, b"x"],
    "open_timeout": ["1", True],
    "ping_interval": ["1"],
    "ping_timeout": ["1"],
    "close_timeout": ["1"],
    "max_size": ["1", 1.5],
    "max_fragments": ["1", 1.5],
    "max_queue": ["1", 1.5],
    "max_pending": ["1", 1.5, None],
    "ssl": [1, "cert.pem", True],
    "sock": [1, "socket"],
    "backlog": ["1", None],
    "logger": [1, "logger"],
    "create_connection": [1, "class"],
}

WRONG_VALUES: dict[str, list[Any]] = {
    "origins": [["https://a/"], ["https://a/chat"], ["example.com"], ["https://Example.com"], ["https://a:443"], ["*"]],
    "port": [-1, 65_536],
    "subprotocols": [["two words"], [""]],
    "compression": ["gzip", ""],
    "server_header": ["a\r\nX-Evil: 1"],
    "open_timeout": [-1, float("nan")],
    "ping_interval": [-1, 0],
    "ping_timeout": [-1, 0],
    "close_timeout": [-1],
    "max_size": [-1],
    "max_fragments": [-1, 0],
    "max_queue": [-1],
    "max_pending": [-1, 0],
    "backlog": [-1],
    "ssl": [TLS() if IS_WIRESPEED else None],
}


def call(name: str, value: Any) -> None:
    options = {"handler": echo, "host": "127.0.0.1", "port": 0, name: value}
    if name == "sock":
        del options["host"], options["port"]
    with no_leaks():
        serve(**options)


@pytest.mark.parametrize(("name", "value"), cases(WRONG_TYPES))
def test_wrong_types(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        call(name, value)


@pytest.mark.parametrize("name", ["handler", "process_request", "process_response", "select_subprotocol"])
def test_coroutine_functions(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must not be a coroutine function"):
        call(name, coroutine)


@pytest.mark.parametrize(("name", "value"), cases(WRONG_VALUES))
def test_wrong_values(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        call(name, value)


@pytest.mark.parametrize(
    "options",
    [
        {"open_timeout": None, "ping_interval": None, "ping_timeout": None, "close_timeout": None},
        {"max_size": (1 << 20, 1 << 16), "max_queue": (16, 4), "max_fragments": None},
        {"max_size": None, "max_queue": None, "max_pending": 1},
        {"origins": (), "subprotocols": ()},
        {"family": socket.AF_INET, "backlog": 0, "reuse_address": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_right(options: dict[str, Any]) -> None:
    with serving(**options):
        pass


@pytest.mark.parametrize("where", [("127.0.0.1",), (None, 0)], ids=["host", "port"])
def test_sock_excludes_the_others(where: Any) -> None:
    with socket.socket() as sock, pytest.raises(ValueError, match="sock excludes host and port"):
        serve(echo, *where, sock=sock)


def test_sock_closed() -> None:
    sock = socket.socket()
    sock.close()
    with pytest.raises(ValueError, match="sock is closed"):
        serve(echo, sock=sock)


def test_sock_with_tls() -> None:
    context = ssl.create_default_context()
    with (
        context.wrap_socket(socket.socket(), server_hostname="x", do_handshake_on_connect=False) as sock,
        pytest.raises(TypeError, match="sock must be a plain socket"),
    ):
        serve(echo, sock=sock)


def test_unix_path(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path is missing"):
        unix_serve(echo)
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ValueError, match="path and sock exclude each other"):
        unix_serve(echo, tmp_path / "socket", sock=sock)
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize("name", ["host", "port", "family", "reuse_port", "no_such_thing"])
def test_unix_keywords(tmp_path: Path, name: str) -> None:
    with pytest.raises(TypeError, match=rf"unix_serve\(\) got an unexpected keyword argument '{name}'"):
        unix_serve(echo, tmp_path / "socket", **cast("dict[str, Any]", {name: None}))


@pytest.mark.parametrize(("name", "value"), [("max_size", -1), ("process_request", coroutine)], ids=["value", "type"])
def test_unix_wrong(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"), no_leaks():
        unix_serve(echo, tmp_path / "socket", **{name: value})
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize(("code", "reason"), [(99, ""), (1006, ""), (1000, "x" * 124), (5000, "")], ids=str)
def test_shutdown_wrong_values(code: int, reason: str) -> None:
    with serving() as server:
        with pytest.raises(exceptions.ProtocolError):
            server.shutdown(code=code, reason=reason)
        assert server.sockets  # it continues


def test_shutdown_wrong_types() -> None:
    with serving() as server:
        with pytest.raises(TypeError, match=re.escape("code must be an int")):
            server.shutdown(code="1000")
        with pytest.raises(TypeError, match=re.escape("reason must be a str")):
            server.shutdown(reason=b"x")
