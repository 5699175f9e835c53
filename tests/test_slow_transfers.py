"""Keepalive of servers during large transfers: bytes that arrive, or are acknowledged, show that a client is alive."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wirespeed.sync
from support.frames import BINARY
from support.serving import masked, request
from support.uvicorn_server import UvicornServer
from wirespeed.engine import Engine

pytestmark = pytest.mark.wirespeed_only("websockets and uvicorn count pongs only")

INTERVAL, TIMEOUT = 0.5, 1.0
SIZE = 900_000
SECONDS = 3.0
Address = tuple[str, int]


@contextlib.contextmanager
def engine() -> Iterator[Address]:
    def answer(session: Any, _message: Any) -> None:
        session.send(bytes(SIZE))

    started = Engine("127.0.0.1", ping_interval=INTERVAL, ping_timeout=TIMEOUT)
    started.on_message(answer)
    with started:
        threading.Thread(target=started.run, daemon=True).start()
        yield started.addresses[0]


@contextlib.contextmanager
def blocking() -> Iterator[Address]:
    def handler(ws: Any) -> None:
        for _ in ws:
            ws.send(bytes(SIZE))

    options: dict[str, Any] = {"compression": None, "ping_interval": INTERVAL, "ping_timeout": TIMEOUT}
    with wirespeed.sync.serve(handler, "127.0.0.1", 0, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def asgi() -> Iterator[Address]:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "bytes": bytes(SIZE)})

    options: dict[str, Any] = {"ws_ping_interval": INTERVAL, "ws_ping_timeout": TIMEOUT}
    with UvicornServer(app, lifespan="off", **options) as server:
        yield server.address


SERVERS = [engine, blocking, asgi]


def dial(address: Address) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    sock.settimeout(20)
    sock.connect(address)
    sock.sendall(request("/"))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    return sock


def received(sock: socket.socket, at_least: int, *, step: int = 1 << 20, pause: float = 0) -> int:
    """Counts the received bytes, until there are enough or the stream ends."""
    count = 0
    while count < at_least and (data := sock.recv(step)):
        count += len(data)
        time.sleep(pause)
    return count


@pytest.mark.parametrize("serve", SERVERS)
def test_slowly_sending_client_stays_connected(serve: Callable[..., Any]) -> None:
    with serve() as address, dial(address) as sock:
        data = masked(BINARY, bytes(100_000))
        pieces = 100
        for start in range(0, len(data), len(data) // pieces):
            sock.sendall(data[start : start + len(data) // pieces])
            time.sleep(SECONDS / pieces)
        assert received(sock, SIZE) >= SIZE


@pytest.mark.parametrize("serve", SERVERS)
def test_slowly_reading_client_stays_connected(serve: Callable[..., Any]) -> None:
    """The ping waits behind bytes in the kernel's buffer."""
    with serve() as address, dial(address) as sock:
        sock.sendall(masked(BINARY, b"x"))
        steps = 60
        assert received(sock, SIZE, step=SIZE // steps, pause=SECONDS / steps) >= SIZE
        sock.sendall(masked(BINARY, b"x"))
        assert received(sock, SIZE) >= SIZE


@pytest.mark.parametrize("serve", SERVERS)
def test_client_that_stops_in_a_large_message_times_out(serve: Callable[..., Any]) -> None:
    with serve() as address, dial(address) as sock:
        sock.sendall(masked(BINARY, bytes(100_000))[:50_000])
        # A ping, and the close frame with 1011.
        data = b""
        while piece := sock.recv(1000):
            data += piece
        assert b"\x03\xf3keepalive ping timeout" in data
