"""Requests of clients through both HTTP parsers of uvicorn: the application's view, and refusals."""

from __future__ import annotations

import logging
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from support.uvicorn_server import OURS, THEIRS, UvicornServer
from wirespeed.asgi._uvicorn import HEAD_BYTES, essential_head, http_version_of, with_version

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

PARSERS = pytest.mark.parametrize("http", ["h11", "httptools"])
TIMEOUT = 20

# 64 KiB are read by default; for this size h11 has room beside the rest.
LONG = 60_000
# By default h11 refuses a head of more than 16 KiB that arrives in pieces, before either implementation is called.
IN_PIECES = 65_536


def request(path: str = "/", more: str = "", version: str = "1.1") -> bytes:
    text = (
        f"GET {path} HTTP/{version}\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
    )
    return text.encode("latin-1")


class App:
    """An application that accepts, and keeps the scope of the request."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await receive()
        await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
        await send({"type": "websocket.close"})


def answer(app: App, data: bytes, implementation: str = OURS, **options: Any) -> tuple[int, str]:
    """Returns status and body of the answer to a request."""
    with (
        UvicornServer(
            app, ws=implementation, lifespan="off", h11_max_incomplete_event_size=IN_PIECES, **options
        ) as server,
        socket.create_connection(server.address) as sock,
    ):
        sock.settimeout(TIMEOUT)
        # In two pieces, as a network may deliver it.
        sock.sendall(data[: len(data) // 2])
        time.sleep(0.02)
        sock.sendall(data[len(data) // 2 :])
        got = b""
        while b"\r\n\r\n" not in got:
            got += sock.recv(1)
        head, status = got.decode("latin-1"), int(got.split()[1])
        body = b""
        if status != 101:
            while piece := sock.recv(65536):
                body += piece
    assert head.startswith("HTTP/1.1 ")
    return status, body.decode()


@PARSERS
@pytest.mark.parametrize(
    ("more", "path", "status"),
    [
        ("Cookie: " + "x" * 14_000 + "\r\n", "/", 101),
        ("X-A: b\r\n" * 130, "/", 431),
        ("", "/" + "a" * 14_000, 101),
        ("", "/" + "a" * 17_000, 414),
        ("", "*", 400),
        ("", "http://x/a?b", 101),
        ("X-A: \xe9\r\n", "/%C3%A9", 101),
        ("Content-Length: 3\r\n", "/", 400),
        ("Sec-WebSocket-Protocol: a b\r\n", "/", 400),
    ],
)
def test_requests(more: str, path: str, status: int, http: str) -> None:
    """Our implementation answers refused requests."""
    app = App()
    assert answer(app, request(path, more), http=http)[0] == status
    assert len(app.scopes) == (status == 101)
    if app.scopes:
        paths = {"/%C3%A9": "/é", "http://x/a?b": "/a"}
        assert app.scopes[0]["path"] == paths.get(path, path)
        assert app.scopes[0]["query_string"] == (b"b" if "?" in path else b"")


# Lines of at most 8 KiB, which uvicorn accepts by default.
COOKIES = "".join(f"Cookie: c{number}={'x' * 7_000}\r\n" for number in range(LONG // 7_100))
LONG_HEAD = f"X-First: \xe9 \r\n{COOKIES}Sec-WebSocket-Protocol: chat, other\r\nX-Empty:\r\nX-Last: 1\r\nX-Last: 2\r\n"


@PARSERS
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_long_head(http: str, loop: str) -> None:
    """The application sees all of it, as with uvicorn's own."""
    found = []
    for implementation in (OURS, THEIRS):
        app = App()
        assert answer(app, request("/a?b=c", LONG_HEAD), implementation, http=http, loop=loop)[0] == 101
        scope = {key: value for key, value in app.scopes[0].items() if key not in ("client", "server")}
        found.append(scope)
    assert sum(len(name) + len(value) for name, value in found[0]["headers"]) > LONG - 8_000
    assert found[0] == found[1]


@PARSERS
def test_a_long_field(http: str) -> None:
    app = App()
    assert answer(app, request("/", f"Cookie: {'x' * LONG}\r\n"), http=http)[0] == 101
    assert (b"cookie", b"x" * LONG) in app.scopes[0]["headers"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (f"Cookie: {'x' * 66_000}\r\n", 431),
        (f"Cookie: {'x' * 20_000}\r\n" + "X-A: b\r\n" * 130, 431),
        # Fields that the core parses stay within its own limit.
        (f"Sec-WebSocket-Protocol: {'x' * 20_000}\r\n", 431),
        (f"Cookie: {'x' * 20_000}\r\nContent-Length: 3\r\n", 400),
        (f"Cookie: {'x' * 20_000}\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", 400),
    ],
)
def test_a_head_that_is_too_long_or_wrong(more: str, status: int) -> None:
    app = App()
    # h11 itself refuses heads longer than 64 KiB.
    assert answer(app, request("/", more), http="httptools")[0] == status
    assert app.scopes == []


@PARSERS
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_http_1_0(http: str, loop: str, caplog: pytest.LogCaptureFixture) -> None:
    """RFC 6455, section 4.1: the version must be at least 1.1. The answer is that of ``serve``."""
    app = App()
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        status, body = answer(app, request(version="1.0"), http=http, loop=loop)
    assert status == 505
    assert "unsupported HTTP version: HTTP/1.0, expected HTTP/1.1" in body
    assert app.scopes == []
    assert "WebSocket request refused: unsupported HTTP version: HTTP/1.0" in caplog.text


def test_version_stands_in_the_first_line() -> None:
    head = b"GET / HTTP/1.1\r\nX: as in HTTP/1.1\r\n\r\n"
    assert with_version(head, "1.1") is head
    assert with_version(head, "1.0") == b"GET / HTTP/1.0\r\nX: as in HTTP/1.1\r\n\r\n"


def head_of(size: int, fields: int = 7) -> bytes:
    lines = [b"GET / HTTP/1.1", b"host: x:1", b"upgrade: websocket", b"connection: Upgrade", b"sec-websocket-key: k"]
    lines += [b"x: y"] * (fields - 5)
    rest = size - len(b"\r\n".join([*lines, b"", b"", b""])) - len(b"cookie: \t")
    return b"\r\n".join([*lines, b"cookie: " + b"c" * rest + b"\t", b"", b""])


@pytest.mark.parametrize(
    ("size", "fields"), [(2**14, 7), (HEAD_BYTES + 1, 7), (2**15, 129)], ids=["short", "too long", "too many"]
)
def test_head_that_is_not_changed(size: int, fields: int) -> None:
    head = head_of(size, fields)
    assert len(head) == size
    assert essential_head(head) == (head, None)


@pytest.mark.parametrize(("size", "fields"), [(2**14 + 1, 7), (HEAD_BYTES, 128)])
def test_head_reduced_to_fields_of_the_core(size: int, fields: int) -> None:
    head = head_of(size, fields)
    kept, all_fields = essential_head(head)
    assert kept == (
        b"GET / HTTP/1.1\r\nhost: x:1\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: k\r\n\r\n"
    )
    assert all_fields is not None
    assert len(all_fields) == fields
    assert all_fields[0] == (b"host", b"x:1")
    name, value = all_fields[-1]
    assert (name, set(value)) == (b"cookie", {ord("c")})


@pytest.mark.parametrize(
    "transport",
    [
        SimpleNamespace(),
        SimpleNamespace(get_protocol=lambda: SimpleNamespace()),
        SimpleNamespace(get_protocol=lambda: SimpleNamespace(scope={})),
        SimpleNamespace(get_protocol=lambda: SimpleNamespace(scope=None)),
        SimpleNamespace(get_protocol=lambda: SimpleNamespace(scope={"http_version": 2})),
    ],
    ids=["transport", "protocol", "version", "scope", "number"],
)
def test_parser_without_http_version(transport: Any) -> None:
    """There may be other parsers than those of uvicorn."""
    assert http_version_of(transport) == "1.1"
