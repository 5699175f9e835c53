"""Load: large messages, many messages, many connections, ends that do not read; compression; tasks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import socket
import ssl
import struct
import time
from typing import Any

import pytest
import websockets.asyncio.client as client
import websockets.exceptions
from websockets.exceptions import ConnectionClosed

import wirespeed
from support.certificates import Certificates
from support.uvicorn_server import OURS, THEIRS, UvicornServer
from wirespeed.asgi import WebSocketProtocol

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
TIMEOUT = 50


def run(coroutine: Any) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(limited())


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({**event, "type": "websocket.send"})


def settled(server: UvicornServer) -> bool:
    deadline = time.monotonic() + 10
    while (server.connections or server.tasks) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not server.connections and not server.tasks


@LOOPS
def test_large_messages(loop: str) -> None:
    async def main(uri: str) -> None:
        data = os.urandom(10_000_000)
        text = "é" * 3_000_000
        async with client.connect(uri, max_size=None, compression=None) as ws:
            for message in (data, text, b"x"):
                await ws.send(message)
                assert await ws.recv() == message
        async with wirespeed.connect(uri, max_size=None) as ours:
            for message in (data, text, b"x"):
                await ours.send(message)
                assert await ours.recv() == message

    with UvicornServer(echo, loop=loop, lifespan="off") as server:
        run(main(server.uri))
        assert settled(server)


@LOOPS
async def test_fragments(loop: str) -> None:
    with UvicornServer(echo, loop=loop, lifespan="off") as server:
        async with client.connect(server.uri) as ws:
            await ws.send(["a", "é" * 1000, "", "b"])
            assert await ws.recv() == "a" + "é" * 1000 + "b"


async def test_largest_message() -> None:
    with UvicornServer(echo, lifespan="off", ws_max_size=1000) as server:
        async with client.connect(server.uri, compression=None) as ws:
            await ws.send(bytes(1000))
            assert await ws.recv() == bytes(1000)
            await ws.send([bytes(999), bytes(2)])
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1009
        async with client.connect(server.uri) as ws:
            # It is small on the wire.
            await ws.send(bytes(100_000))
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1009


class Patient(WebSocketProtocol):
    max_fragments = 5000


@pytest.mark.parametrize(("implementation", "most"), [(OURS, 4096), (Patient, 5000)])
async def test_limit_of_fragments(implementation: Any, most: int) -> None:
    with UvicornServer(echo, ws=implementation, lifespan="off") as server:
        async with client.connect(server.uri) as ws:
            # It ends each with an empty one.
            await ws.send([b"x"] * (most - 1))
            assert await ws.recv() == b"x" * (most - 1)
            await ws.send([b"x"] * most)
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1009


@pytest.mark.parametrize("implementation", [OURS, THEIRS], ids=["ours", "theirs"])
@pytest.mark.parametrize("enabled", [True, False])
def test_compression(implementation: str, enabled: bool) -> None:
    async def main(uri: str) -> Any:
        async with client.connect(uri) as ws:
            for message in ("text " * 1000, b"\0" * 100_000, "", "x"):
                await ws.send(message)
                assert await ws.recv() == message
            assert ws.response is not None
            return ws.response.headers.get("Sec-WebSocket-Extensions")

    with UvicornServer(echo, ws=implementation, lifespan="off", ws_per_message_deflate=enabled) as server:
        expected = "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12"
        assert run(main(server.uri)) == (expected if enabled else None)


@LOOPS
async def test_messages_in_order(loop: str) -> None:
    """Many messages in both directions at once, nothing is lost."""
    count = 20_000
    with UvicornServer(echo, loop=loop, lifespan="off") as server:
        async with wirespeed.connect(server.uri) as ws:
            sending = asyncio.ensure_future(ws.send_many(str(n) for n in range(count)))
            for n in range(count):
                assert await ws.recv() == str(n)
            await sending


@LOOPS
def test_many_connections(loop: str) -> None:
    count = 300

    async def main(server: UvicornServer) -> None:
        async def one(n: int) -> None:
            async with wirespeed.connect(server.uri) as ws:
                await ws.send(str(n))
                assert await ws.recv() == str(n)
                barrier.append(n)
                while len(barrier) < count:
                    await asyncio.sleep(0.01)
                assert server.connections == server.tasks == count
                await ws.send("again")
                assert await ws.recv() == "again"
                left.append(n)
                while len(left) < count:
                    await asyncio.sleep(0.01)

        barrier: list[int] = []
        left: list[int] = []
        await asyncio.gather(*(one(n) for n in range(count)))

    with UvicornServer(echo, loop=loop, lifespan="off") as server:
        run(main(server))
        assert settled(server)


def test_nothing_is_left() -> None:
    async def main(uri: str) -> None:
        for _ in range(20):
            async with wirespeed.connect(uri) as ws:
                await ws.send("x")
                await ws.recv()
        for _ in range(5):
            with contextlib.suppress(wirespeed.InvalidStatus):
                await wirespeed.connect(uri + "/no")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (echo(scope, receive, send) if scope["path"] == "/" else send({"type": "websocket.close"}))

    from wirespeed.asgi import WebSocketProtocol
    from wirespeed.asyncio import Connection

    def left() -> int:
        gc.collect()
        return sum(type(item) in (WebSocketProtocol, Connection) for item in gc.get_objects())

    before = left()
    with UvicornServer(app, lifespan="off") as server:
        run(main(server.uri))
        assert settled(server)
        deadline = time.monotonic() + 5
        while left() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left() == before


def raw(server: UvicornServer) -> socket.socket:
    sock = socket.create_connection(server.address)
    sock.settimeout(TIMEOUT)
    sock.sendall(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1)
    return sock


@LOOPS
def test_client_that_does_not_read(loop: str) -> None:
    """The application waits; it gets an exception when the client leaves."""
    sent: list[int] = []
    errors: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "bytes": bytes(65536)})
                sent.append(1)
        except OSError as exc:
            errors.append(type(exc).__name__)
            raise

    with UvicornServer(app, loop=loop, lifespan="off") as server:
        sock = raw(server)
        count = -1
        while count != len(sent):
            count = len(sent)
            time.sleep(0.2)
        # The capacity of the socket buffers of both ends, and write_limit.
        assert count * 65536 < 20_000_000
        for _ in range(100):
            sock.recv(2**20)
        time.sleep(0.3)
        assert len(sent) > count
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        assert settled(server)
    assert errors == ["ClientDisconnected"]


@LOOPS
def test_application_that_does_not_receive(loop: str) -> None:
    """The client waits; nothing is lost when the application continues."""
    proceed: list[int] = []
    received: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not proceed:
            await asyncio.sleep(0.01)
        while (event := await receive())["type"] == "websocket.receive":
            received.append(len(event["bytes"]))

    with UvicornServer(app, loop=loop, lifespan="off") as server:
        sock = raw(server)
        sock.settimeout(0.5)
        frame = b"\x82\xfe" + (60_000).to_bytes(2, "big") + bytes(4) + bytes(60_000)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 100_000_000:
                sent += sock.send(frame[sent % len(frame) :])
        assert sent < 30_000_000
        proceed.append(1)
        sock.settimeout(TIMEOUT)
        while sent % len(frame):
            sent += sock.send(frame[sent % len(frame) :])
        sock.sendall(b"\x88\x80\0\0\0\0")
        assert settled(server)
        sock.close()
    assert received == [60_000] * (sent // len(frame))


def test_tasks() -> None:
    """Receiving with a timeout loses nothing; several tasks send and receive."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        timeouts = 0

        async def tick() -> None:
            while True:
                await send({"type": "websocket.send", "text": "tick"})
                await asyncio.sleep(0.01)

        ticking = asyncio.ensure_future(tick())
        try:
            while True:
                try:
                    event = await asyncio.wait_for(receive(), 0.005)
                except asyncio.TimeoutError:
                    timeouts += 1
                    continue
                if event["type"] == "websocket.disconnect":
                    break
                await send({"type": "websocket.send", "text": f"{event['text']} {timeouts > 0}"})
        finally:
            ticking.cancel()

    async def main(uri: str) -> None:
        async with client.connect(uri) as ws:
            got = []
            for n in range(50):
                await ws.send(str(n))
                await asyncio.sleep(0.007)
                while (text := await ws.recv()) == "tick":
                    pass
                got.append(text)
            assert [text.split()[0] for text in got] == [str(n) for n in range(50)]
            assert got[-1] == "49 True"

    with UvicornServer(app, lifespan="off") as server:
        run(main(server.uri))
        assert settled(server)


def test_receiving_while_another_task_closes() -> None:
    events: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0.05)
        await send({"type": "websocket.close", "code": 3009, "reason": "so"})
        events.append(await waiting)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receive(), 0.05)

    async def main(uri: str) -> None:
        async with client.connect(uri) as ws:
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 3009

    with UvicornServer(app, lifespan="off") as server:
        run(main(server.uri))
        assert settled(server)
    assert events == [{"type": "websocket.disconnect", "code": 3009, "reason": "so"}]


@LOOPS
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_random_ends(loop: str, secure: bool, certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """For any order of actions of clients and the application, every connection ends, and nothing fails."""
    dice = random.Random(loop)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        what = scope["path"][1:]
        if what == "denied":
            await send({"type": "websocket.http.response.start", "status": 418})
            await send({"type": "websocket.http.response.body", "body": bytes(100_000)})
            return
        await asyncio.sleep(dice.random() / 100)
        await send({"type": "websocket.accept"})
        if what == "returns":
            return
        if what == "closes":
            await send({"type": "websocket.close", "code": 3000})
            return
        if what == "sends":
            for _ in range(100):
                await send({"type": "websocket.send", "bytes": bytes(100_000)})
            return
        while (event := await receive())["type"] == "websocket.receive":
            await send({**event, "type": "websocket.send"})

    async def one(server: UvicornServer, context: ssl.SSLContext | None) -> None:
        kind = dice.choice(["returns", "closes", "sends", "denied", "echoes", "echoes"])
        try:
            async with client.connect(f"{server.uri}/{kind}", ssl=context, max_size=None, close_timeout=0.3) as ws:
                end = dice.choice(["close", "abort", "reset", "garbage", "wait", "unread"])
                for _ in range(dice.randrange(4)):
                    await ws.send(bytes(dice.choice([1, 1000, 300_000])))
                    await asyncio.sleep(dice.random() / 200)
                if end == "abort":
                    ws.transport.abort()
                elif end == "reset":
                    sock = ws.transport.get_extra_info("socket")
                    if sock is None:
                        return  # the server was faster
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    ws.transport.abort()
                elif end == "garbage":
                    ws.transport.write(dice.randbytes(50))
                elif end == "wait":
                    await asyncio.sleep(0.05)
                    await ws.close()
                elif end == "unread":
                    ws.transport.pause_reading()
                    await asyncio.sleep(0.05)
                    ws.transport.abort()
        except (websockets.exceptions.WebSocketException, OSError, RuntimeError):
            pass

    async def main(server: UvicornServer, context: ssl.SSLContext | None) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for _ in range(8):
            await asyncio.gather(*(one(server, context) for _ in range(20)))

    options, context = {}, None
    if secure:
        options = dict(zip(("ssl_certfile", "ssl_keyfile"), certificates.server_files(), strict=True))
        context = ssl.create_default_context(cafile=certificates.ca_file)
    with UvicornServer(app, loop=loop, lifespan="off", **options) as server:
        run(main(server, context))
        assert settled(server)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
