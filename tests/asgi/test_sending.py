"""Messages of an application, valid and invalid ones, and the result of a cancelled ``send``."""

from __future__ import annotations

import array
import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import websockets.asyncio.client as client

from support.uvicorn_server import UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

TIMEOUT = 20


def run(coroutine: Any) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(limited())


class Text(str):
    __slots__ = ()


class Sending:
    """An application that sends one value under one key, and then ``end``."""

    def __init__(self, key: str, make: Callable[[], object]) -> None:
        self.key, self.make = key, make
        self.raised: Exception | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            await send({"type": "websocket.send", self.key: self.make()})
        except Exception as exc:
            self.raised = exc
        await send({"type": "websocket.send", "text": "end"})


async def received(uri: str) -> list[str | bytes]:
    messages: list[str | bytes] = []
    async with client.connect(uri) as ws:
        async for message in ws:
            messages.append(message)
    return messages


def sent(app: Sending) -> list[str | bytes]:
    with UvicornServer(app, lifespan="off") as server:
        messages: list[str | bytes] = run(received(server.uri))
    return messages


@pytest.mark.parametrize(
    ("key", "make", "needs"),
    [
        ("text", lambda: b"x", "must be a str, not bytes"),
        ("text", lambda: bytearray(b"x"), "must be a str, not bytearray"),
        ("text", lambda: ["a", "b"], "must be a str, not list"),
        ("text", lambda: iter(["a"]), "must be a str, not list_iterator"),
        ("text", lambda: 1, "must be a str, not int"),
        ("bytes", lambda: "x", "must be bytes-like, not str"),
        ("bytes", lambda: [b"a"], "must be bytes-like, not list"),
        ("bytes", lambda: iter([b"a"]), "must be bytes-like, not list_iterator"),
        ("bytes", dict, "must be bytes-like, not dict"),
        ("bytes", lambda: 1, "must be bytes-like, not int"),
    ],
)
def test_invalid_message(key: str, make: Callable[[], object], needs: str) -> None:
    """Nothing of it is sent, and the connection stays usable."""
    app = Sending(key, make)
    assert sent(app) == ["end"]
    assert type(app.raised) is TypeError
    assert str(app.raised) == f"'{key}' of websocket.send {needs}"


@pytest.mark.parametrize(
    ("key", "make", "message"),
    [
        ("text", lambda: Text("x"), "x"),
        ("bytes", lambda: bytearray(b"x"), b"x"),
        ("bytes", lambda: memoryview(b"xyz")[::2], b"xz"),
        ("bytes", lambda: array.array("B", [1, 2]), b"\x01\x02"),
    ],
)
def test_message_like_values(key: str, make: Callable[[], object], message: str | bytes) -> None:
    app = Sending(key, make)
    assert sent(app) == [message, "end"]
    assert app.raised is None


# Cancelled sending.

NOISE = random.Random(1).randbytes(3_000_000)
COUNT = 8

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Impatient:
    """An application that waits only for a moment until a message is sent, and sends the next one; at last it waits.

    Attributes:
        sent: The numbers of those that were sent in time.
        given_up: The numbers of the cancelled ones.
        waits: Set when it has cancelled all that it could.
    """

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.given_up: list[int] = []
        self.waits = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for number in range(COUNT):
            try:
                await asyncio.wait_for(send({"type": "websocket.send", "bytes": bytes([number]) + NOISE}), 0.05)
                self.sent.append(number)
            except asyncio.TimeoutError:
                self.given_up.append(number)
        # It is not sent either: its sending has not begun.
        unborn = asyncio.ensure_future(send({"type": "websocket.send", "bytes": b"unborn"}))
        unborn.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await unborn
        self.waits.set()
        await send({"type": "websocket.send", "bytes": b"last"})
        assert (await receive())["bytes"] == b"still there?"
        await send({"type": "websocket.send", "bytes": b"yes"})


def frames(reader: Any) -> list[bytes]:
    """Returns the payloads of all binary messages up to the close frame; each is one frame."""
    payloads: list[bytes] = []
    while True:
        first, size = reader.read(2)
        if size == 126:
            size = int.from_bytes(reader.read(2), "big")
        elif size == 127:
            size = int.from_bytes(reader.read(8), "big")
        payload = reader.read(size)
        if first == 0x88:
            return payloads
        assert first == 0x82
        payloads.append(payload)
        if payload == b"last":
            reader.write(b"\x82\x8c" + bytes(4) + b"still there?")


class Reader:
    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")
        self.write = sock.sendall

    def head(self) -> None:
        while self._file.readline() not in (b"\r\n", b""):
            pass

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        assert len(data) == size, "the stream has ended in the middle of a frame"
        return data


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_cancelled_send(loop: str) -> None:
    """The message is delivered whole, or not at all; the application cannot know which."""
    app = Impatient()
    with UvicornServer(app, lifespan="off", loop=loop, ws_ping_interval=None) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(TIMEOUT)
        sock.connect(server.address)
        sock.sendall(REQUEST)
        reader = Reader(sock)
        reader.head()
        assert app.waits.wait(TIMEOUT)
        payloads = frames(reader)
    assert payloads[-2:] == [b"last", b"yes"]
    arrived = [payload[0] for payload in payloads[:-2]]
    assert all(payload[1:] == NOISE for payload in payloads[:-2])
    assert arrived == sorted(set(arrived))
    assert set(app.sent) <= set(arrived)
    # One message was in progress when it was cancelled, or more on a busy machine; messages that had to wait for it
    # were not sent.
    assert set(app.given_up) & set(arrived)
    assert set(app.given_up) - set(arrived)
