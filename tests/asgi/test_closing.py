"""Applications that close: the events that they may still receive, and their codes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.frames import BINARY, CLOSE, TEXT, close
from support.serving import masked, request
from support.uvicorn_server import OURS, THEIRS, UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [OURS, THEIRS], ids=["ours", "theirs"])
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
TIMEOUT = 20

QUEUED = masked(TEXT, b"a") + masked(BINARY, b"b") + masked(TEXT, "ü".encode())
RECEIVED = ["a", b"b", "ü"]


class Closing:
    """The application closes when the client's messages have arrived, and then receives until the disconnect event.

    Args:
        fields: Those of the event ``websocket.close``.
        pause: Seconds between the close and the first event.
    """

    def __init__(self, fields: dict[str, Any], pause: float = 0.0) -> None:
        self.fields = fields
        self.pause = pause
        self.seen: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.sleep(0.2)
        await send({"type": "websocket.close", **self.fields})
        await asyncio.sleep(self.pause)
        while (event := await receive())["type"] == "websocket.receive":
            self.seen.append(event.get("text") if event.get("bytes") is None else event["bytes"])
        self.seen.append(event["code"])


@contextlib.contextmanager
def opened(server: UvicornServer) -> Iterator[socket.socket]:
    with socket.create_connection(server.address) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(request())
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            data += sock.recv(1)
        yield sock
        # Before the server ends, which the application would notice.
        deadline = time.monotonic() + 5
        while server.tasks:
            assert time.monotonic() < deadline, "the application has not been told of the end"
            time.sleep(0.005)


def end(sock: socket.socket) -> bytes:
    """Reads the close frame, answers it, and returns it with the remaining data."""
    data = sock.recv(100)
    sock.sendall(masked(CLOSE, data[2:4]))
    while piece := sock.recv(100):
        data += piece
    return data


@IMPLEMENTATIONS
@LOOPS
def test_messages_before_the_close_are_received(implementation: str, loop: str) -> None:
    """Earlier messages are received, and then the end that the application requested."""
    app = Closing({"code": 3000, "reason": "enough"})
    with UvicornServer(app, ws=implementation, loop=loop, lifespan="off") as server, opened(server) as sock:
        sock.sendall(QUEUED)
        assert end(sock) == close(3000, "enough")
    assert app.seen == [*RECEIVED, 3000]


@LOOPS
def test_messages_after_the_close_are_dropped(loop: str) -> None:
    """Later messages are not received, however long the application waits."""
    app = Closing({"code": 3000}, pause=0.3)
    with UvicornServer(app, loop=loop, lifespan="off") as server, opened(server) as sock:
        sock.sendall(QUEUED)
        data = sock.recv(100)
        sock.sendall(masked(TEXT, b"late") + masked(CLOSE, data[2:4]))
        assert data + sock.recv(100) == close(3000)
    assert app.seen == [*RECEIVED, 3000]


@LOOPS
def test_client_does_not_answer_the_close_frame(loop: str) -> None:
    """The end is reported immediately, though the client has not answered the close frame."""
    app = Closing({"code": 3000})
    with UvicornServer(app, loop=loop, lifespan="off") as server, opened(server) as sock:
        sock.sendall(QUEUED + masked(TEXT, b"half of a mes", fin=False))
        assert sock.recv(100) == close(3000)
    assert app.seen == [*RECEIVED, 3000]


@LOOPS
def test_after_the_client_has_closed(loop: str) -> None:
    """The code is that of the client, which closed first."""
    app = Closing({"code": 3000})
    with UvicornServer(app, loop=loop, lifespan="off") as server, opened(server) as sock:
        sock.sendall(QUEUED + masked(CLOSE, close(4001)[2:]))
        assert sock.recv(100) == close(4001)
    assert app.seen == [*RECEIVED, 4001]


def test_close_event_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Logged like other messages, at level DEBUG."""
    app = Closing({})
    with (
        caplog.at_level(logging.DEBUG, "uvicorn.error"),
        UvicornServer(app, lifespan="off", log_level="debug") as server,
        opened(server) as sock,
    ):
        sock.sendall(QUEUED)
        assert end(sock) == close(1000)
    shown = [text for text in caplog.messages if " < TEXT" in text or " < BINARY" in text]
    assert [text.partition(" - ")[2].split(" [")[0] for text in shown] == ["< TEXT 'a'", "< BINARY 'b'", "< TEXT 'ü'"]


@pytest.mark.parametrize("fields", [{}, {"code": None}, {"code": None, "reason": None}, {"code": 1000}], ids=repr)
def test_code(fields: dict[str, Any]) -> None:
    """``None`` and a missing code both give the default."""
    app = Closing(fields)
    with UvicornServer(app, lifespan="off") as server, opened(server) as sock:
        assert end(sock) == close(1000)
    assert app.seen == [1000]
