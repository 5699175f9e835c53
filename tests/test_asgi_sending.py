"""What an application may send as a message, and what becomes of a ``send`` that is given up."""

from __future__ import annotations

import array
import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import websockets.asyncio.client as client

from interop.uvicorn_server import UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

TIMEOUT = 20


def run(coroutine: Any) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(limited())


class Text(str):
    __slots__ = ()


class Sending:
    """An application that sends one thing under one key, and then ``end``."""

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
def test_what_is_no_message(key: str, make: Callable[[], object], needs: str) -> None:
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
def test_what_is_like_a_message(key: str, make: Callable[[], object], message: str | bytes) -> None:
    app = Sending(key, make)
    assert sent(app) == [message, "end"]
    assert app.raised is None
