"""Slow applications: they receive messages that precede a close frame, even if they answer them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import websockets.asyncio.client as client
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from support.certificates import Certificates
from support.load_scaling import load_scaled
from support.uvicorn_server import UvicornServer
from wirespeed.asgi import _after_close as after_close
from wirespeed.close_codes import Close
from wirespeed.exceptions import ConnectionClosed

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
TIMEOUT = 20
MESSAGES = [f"message {number}" for number in range(50)]

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(first_byte: int, payload: bytes) -> bytes:
    return bytes([first_byte, 0x80 | len(payload)]) + bytes(4) + payload


TEXTS = b"".join(frame(0x81, message.encode()) for message in MESSAGES)
CLOSE = frame(0x88, (4001).to_bytes(2, "big") + b"bye")


@contextlib.contextmanager
def opened(server: UvicornServer) -> Iterator[socket.socket]:
    with socket.create_connection(server.address) as sock:
        sock.settimeout(TIMEOUT)
        sock.sendall(REQUEST)
        data = b""
        while b"\r\n\r\n" not in data:
            data += sock.recv(1)
        yield sock


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No application here fails."""
    with caplog.at_level(logging.INFO, "uvicorn.error"):
        yield
    assert "Traceback" not in caplog.text


class Acknowledging:
    """An application of Starlette that answers each message.

    Args:
        work: Its work for each message before it answers.
    """

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self.work = work
        self.handled: list[str] = []
        self.ended: tuple[int, str] | None = None
        self.app = Starlette(routes=[WebSocketRoute("/", self._endpoint)])

    async def _endpoint(self, ws: WebSocket) -> None:
        await ws.accept()
        try:
            while True:
                text = await ws.receive_text()
                await self.work()
                await ws.send_text(f"begun: {text}")
                await ws.send_text(f"done: {text}")
                self.handled.append(text)
        except WebSocketDisconnect as exc:
            self.ended = (exc.code, exc.reason)


async def no_work() -> None:
    pass


async def some_work() -> None:
    await asyncio.sleep(0.005)


@LOOPS
@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("work", [no_work, lambda: asyncio.sleep(0), some_work], ids=["none", "a turn", "some"])
def test_messages_before_a_close_are_handled(loop: str, count: int, work: Any) -> None:
    app = Acknowledging(work)
    with UvicornServer(app.app, loop=loop) as server, opened(server) as sock:
        sock.sendall(b"".join(frame(0x81, message.encode()) for message in MESSAGES[:count]) + CLOSE)
        wait_for(lambda: app.ended)
    assert app.handled == MESSAGES[:count]
    assert app.ended == (4001, "bye")


@LOOPS
def test_messages_of_a_client_that_closes(loop: str) -> None:
    app = Acknowledging(some_work)

    async def main(uri: str) -> None:
        async with client.connect(uri) as ws:
            for message in MESSAGES:
                await ws.send(message)
            await ws.close(4001, "bye")

    with UvicornServer(app.app, loop=loop) as server:
        asyncio.run(asyncio.wait_for(main(server.uri), TIMEOUT))
        wait_for(lambda: app.ended)
    assert app.handled == MESSAGES
    assert app.ended == (4001, "bye")


def close_at_once(sock: socket.socket) -> None:
    sock.close()


def reset_at_once(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def end_at_once(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


@LOOPS
@pytest.mark.parametrize("leave", [close_at_once, reset_at_once, end_at_once])
def test_messages_of_a_client_that_does_not_wait(loop: str, leave: Callable[[socket.socket], None]) -> None:
    """The end of TCP is behind the close frame."""
    app = Acknowledging(some_work)
    with UvicornServer(app.app, loop=loop) as server, opened(server) as sock:
        sock.sendall(TEXTS + CLOSE)
        wait_for(lambda: app.handled or app.ended)
        leave(sock)
        wait_for(lambda: app.ended)
    assert app.handled == MESSAGES
    assert app.ended == (4001, "bye")


@LOOPS
def test_messages_over_tls(loop: str, certificates: Certificates) -> None:
    app = Acknowledging(some_work)
    cert, key = certificates.server_files()
    context = ssl.create_default_context(cafile=certificates.ca_file)

    async def main(uri: str) -> None:
        async with client.connect(uri, ssl=context) as ws:
            ws.transport.write(TEXTS + CLOSE)
            await ws.wait_closed()

    with UvicornServer(app.app, loop=loop, ssl_certfile=cert, ssl_keyfile=key) as server:
        asyncio.run(asyncio.wait_for(main(server.uri), TIMEOUT))
        wait_for(lambda: app.ended)
    assert app.handled == MESSAGES
    assert app.ended == (4001, "bye")


class Raw:
    """An application without a framework. Exceptions of ``send`` are recorded."""

    def __init__(self, run: Callable[[Raw, Any, Any], Awaitable[None]]) -> None:
        self.run = run
        self.events: list[Any] = []
        self.raised: list[str] = []
        self.over = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        try:
            await self.run(self, receive, send)
        except OSError as exc:
            self.raised.append(type(exc).__name__)
        finally:
            self.over = True


def served(app: Raw, data: bytes, **options: Any) -> None:
    with UvicornServer(app, lifespan="off", **options) as server, opened(server) as sock:
        sock.sendall(data)
        wait_for(lambda: app.over)


async def greet_late(app: Raw, receive: Any, send: Any) -> None:
    """Sends before it receives."""
    await asyncio.sleep(0.1)
    await send({"type": "websocket.send", "text": "hello"})
    while (event := await receive())["type"] == "websocket.receive":
        app.events.append(event["text"])
    app.events.append(event["code"])
    # Now it knows.
    await send({"type": "websocket.send", "text": "still there?"})


def test_late_greeting() -> None:
    app = Raw(greet_late)
    served(app, TEXTS + CLOSE)
    assert app.events == [*MESSAGES, 4001]
    assert app.raised == ["ClientDisconnected"]


async def close_late(app: Raw, receive: Any, send: Any) -> None:
    app.events.append((await receive())["text"])
    await asyncio.sleep(0.1)
    await send({"type": "websocket.close", "code": 3000})
    while (event := await receive())["type"] == "websocket.receive":
        app.events.append(event["text"])
    app.events.append(event["code"])


def test_late_close() -> None:
    app = Raw(close_late)
    served(app, TEXTS + CLOSE)
    assert app.events == [*MESSAGES, 4001]
    assert app.raised == []


async def publish(app: Raw, receive: Any, send: Any) -> None:
    """Sends endlessly, and receives nothing."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        await send({"type": "websocket.send", "text": "news"})
        app.events.append("news")


async def subscribe(app: Raw, receive: Any, send: Any) -> None:
    await receive()
    await publish(app, receive, send)


@LOOPS
@pytest.mark.parametrize(
    ("run", "data"),
    [(publish, CLOSE), (subscribe, TEXTS[: len(frame(0x81, b"message 0"))] + CLOSE), (subscribe, TEXTS + CLOSE)],
    ids=["nothing was sent", "all was received", "some is left"],
)
def test_sending_application_notices_the_disconnect(
    loop: str, run: Any, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_close, "_WITH_MESSAGES", 0.5)
    app = Raw(run)
    served(app, data, loop=loop)
    assert app.raised == ["ClientDisconnected"]


@LOOPS
def test_a_client_that_is_lost(loop: str) -> None:
    """Without a close frame only the loss is reported."""
    app = Raw(publish)
    with UvicornServer(app, loop=loop, lifespan="off") as server, opened(server) as sock:
        sock.sendall(TEXTS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        wait_for(lambda: app.over)
    assert app.raised == ["ClientDisconnected"]


@LOOPS
def test_shutdown_of_a_slow_application(loop: str) -> None:
    """Undeliverable messages do not delay the end of the server."""
    app = Raw(subscribe)
    with UvicornServer(app, loop=loop, lifespan="off") as server, opened(server) as sock:
        sock.sendall(TEXTS + CLOSE)
        with contextlib.suppress(ConnectionError):
            while sock.recv(65536):
                pass
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < load_scaled(5)
    assert app.raised == ["ClientDisconnected"]


def test_second_task_of_an_application() -> None:
    """One task receives, one sends: when the first gets the disconnect event, the second gets an exception."""
    told: list[float] = []

    async def both(app: Raw, receive: Any, send: Any) -> None:
        publishing = asyncio.create_task(publish(app, receive, send))
        while (await receive())["type"] == "websocket.receive":
            pass
        told.append(time.monotonic())
        await publishing

    app = Raw(both)

    with UvicornServer(app, lifespan="off") as server, opened(server) as sock:
        sock.sendall(TEXTS + CLOSE)
        with contextlib.suppress(ConnectionError):
            while sock.recv(65536):
                pass
        wait_for(lambda: app.over)
    assert told
    assert app.raised == ["ClientDisconnected"]


def test_time_limit_for_remaining_messages() -> None:
    """Each received message extends the time limit, the last one by less."""
    late = after_close.SendAfterClose()
    closed = ConnectionClosed(Close(4001, "bye"), Close(4001, "bye"), True)

    def delay(received: int, waiting: int, now: float) -> float | None:
        stats: Any = {"messages_received": received + waiting, "receive_queue_messages": waiting}
        return late.delay(closed, stats, now)

    assert delay(0, 0, 0.0) is None
    assert delay(0, 2, 0.0) == 0
    assert delay(0, 2, 9.9) == pytest.approx(0.001)
    assert delay(0, 2, 10.0) is None
    assert delay(1, 1, 50.0) == 0
    assert delay(1, 1, 59.9) == pytest.approx(0.001)
    assert delay(2, 0, 59.9) == 0
    assert delay(2, 0, 60.8) == pytest.approx(0.001)
    assert delay(2, 0, 61.0) is None


@pytest.mark.parametrize(
    "closed",
    [
        ConnectionClosed(None, None),
        ConnectionClosed(None, Close(1011, "keepalive ping timeout")),
        ConnectionClosed(Close(1012, ""), Close(1012, ""), False),
    ],
    ids=["lost", "failed", "closed by the server"],
)
def test_only_after_a_close_of_the_client(closed: ConnectionClosed) -> None:
    stats: Any = {"messages_received": 5, "receive_queue_messages": 3}
    assert after_close.SendAfterClose().delay(closed, stats, 0.0) is None


@LOOPS
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_close_answer_follows_unread_messages(
    loop: str, secure: bool, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client receives everything, and then the answer to its close frame. The kernel takes little at once, so that
    a transport always has data left.
    """
    native: Any = socket.socket.__base__
    monkeypatch.setattr(socket.socket, "send", lambda sock, data, *flags: native.send(sock, data[:9000], *flags))
    monkeypatch.setattr(
        socket.socket, "sendmsg", lambda sock, data, *rest: native.send(sock, b"".join(data)[:9000], *rest)
    )
    message = bytes(32 * 1024)
    sent = 0

    async def stream(app: Raw, receive: Any, send: Any) -> None:
        nonlocal sent
        while True:
            await send({"type": "websocket.send", "bytes": message})
            sent += 1

    app = Raw(stream)
    cert, key = certificates.server_files()
    options: dict[str, Any] = {"ssl_certfile": cert, "ssl_keyfile": key} if secure else {}
    with UvicornServer(app, lifespan="off", loop=loop, **options) as server, socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        plain.connect(server.address)
        plain.settimeout(TIMEOUT)
        context = ssl.create_default_context(cafile=certificates.ca_file)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") if secure else plain as sock:
            sock.sendall(REQUEST)
            before = -1
            while sent != before or not sent:
                before = sent
                time.sleep(0.2)
            sock.sendall(CLOSE)
            data = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while more := sock.recv(1 << 16):
                    data += more
        wait_for(lambda: app.over)
    received = data.partition(b"\r\n\r\n")[2]
    frames = []
    while received:
        size, length = (4, int.from_bytes(received[2:4], "big")) if received[1] == 126 else (2, received[1])
        frames.append((received[0], received[size : size + length]))
        received = received[size + length :]
    assert frames[-1] == (0x88, (4001).to_bytes(2, "big") + b"bye")
    assert set(frames[:-1]) == {(0x82, message)}
    assert len(frames) > sent
