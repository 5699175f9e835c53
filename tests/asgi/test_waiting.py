"""Applications that continue to receive after the end: they delay neither the server nor its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.load_scaling import load_scaled
from support.uvicorn_server import OURS, UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
# Seconds within which an idle server answers, and ends.
SOON = 5
# Seconds after which an application gives up, so that a blocked server ends eventually.
GUARD = 10

REQUEST = (
    b"GET /%s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"


class App:
    """It answers HTTP; in a WebSocket it performs the action of the path, and then receives endlessly.

    Attributes:
        told: The codes of all ``websocket.disconnect``.
        ended: The exceptions or results of the applications.
    """

    def __init__(self, receive_for_ever: Callable[[Any, App], Any] | None = None) -> None:
        self.told: list[int] = []
        self.ended: list[str] = []
        self.begun = 0
        self._receive_for_ever = receive_for_ever or _receive_for_ever

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"hi"})
            return
        assert (await receive())["type"] == "websocket.connect"
        self.begun += 1
        try:
            await self._answer(scope["path"], send)
            await self._receive_for_ever(receive, self)
        except BaseException as exc:
            self.ended.append(type(exc).__name__)
            raise
        self.ended.append("return")

    async def _answer(self, path: str, send: Any) -> None:
        if path == "/reject":
            await send({"type": "websocket.close"})
        elif path == "/deny":
            await send({"type": "websocket.http.response.start", "status": 429, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"no"})
        elif path != "/wait":
            await send({"type": "websocket.accept"})
        if path == "/close":
            await send({"type": "websocket.close", "code": 3000})

    def note(self, event: Any) -> None:
        if event["type"] == "websocket.disconnect":
            self.told.append(event["code"])


async def _receive_for_ever(receive: Any, app: App) -> None:
    guard = time.monotonic() + GUARD
    while time.monotonic() < guard:
        app.note(await receive())


@contextlib.contextmanager
def request(server: UvicornServer, path: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(server.address) as sock:
        sock.settimeout(load_scaled(SOON))
        sock.sendall(REQUEST % path)
        yield sock


def head(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1)
    return data


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + load_scaled(SOON)
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def answers_http(address: tuple[str, int]) -> bool:
    with socket.create_connection(address) as sock:
        sock.settimeout(load_scaled(SOON))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        try:
            return head(sock).startswith(b"HTTP/1.1 200 ")
        except TimeoutError:
            return False


def stop(server: UvicornServer) -> None:
    begin = time.monotonic()
    server.stop()
    assert time.monotonic() - begin < load_scaled(SOON)


# Kinds of ends, and the code that the application gets.


def leave(server: UvicornServer, app: App) -> None:
    with request(server, b"open") as sock:
        head(sock)


def close(server: UvicornServer, app: App) -> None:
    with request(server, b"open") as sock:
        head(sock)
        sock.sendall(CLOSE)
        assert sock.recv(100) == b"\x88\x02\x03\xe8"


def leave_early(server: UvicornServer, app: App) -> None:
    with request(server, b"wait"):
        wait_for(lambda: app.begun == 1)


def be_closed(server: UvicornServer, app: App) -> None:
    with request(server, b"close") as sock:
        head(sock)
        assert sock.recv(100) == b"\x88\x02\x0b\xb8"
        sock.sendall(b"\x88\x82\0\0\0\0\x0b\xb8")


def be_rejected(server: UvicornServer, app: App) -> None:
    with request(server, b"reject") as sock:
        assert b" 403 " in head(sock)


def be_denied(server: UvicornServer, app: App) -> None:
    with request(server, b"deny") as sock:
        assert b" 429 " in head(sock)
        assert sock.recv(100) == b"no"
        assert sock.recv(100) == b""


ENDINGS = pytest.mark.parametrize(
    ("end", "code"),
    [(leave, 1006), (close, 1000), (leave_early, 1006), (be_closed, 3000), (be_rejected, 1006), (be_denied, 1006)],
)


@LOOPS
@ENDINGS
def test_receiving_after_the_end(loop: str, end: Any, code: int, caplog: pytest.LogCaptureFixture) -> None:
    """The end is reported once. Other clients are served, and the server can end: with it the application."""
    app = App()
    with caplog.at_level(logging.INFO, "uvicorn.error"), UvicornServer(app, loop=loop, lifespan="off") as server:
        for _ in range(3):
            end(server, app)
            assert answers_http(server.address)
            app.begun = 0
        wait_for(lambda: len(app.told) >= 3)
        time.sleep(0.05)
        assert app.told == [code] * 3
        assert server.tasks == 3
        stop(server)
    assert app.ended == ["CancelledError"] * 3
    assert "Exception in ASGI application" not in caplog.text


@LOOPS
@pytest.mark.parametrize("path", [b"open", b"wait", b"close", b"reject"])
def test_receiving_after_shutdown(loop: str, path: bytes) -> None:
    """The server ends while silent clients are connected."""
    app = App()
    with UvicornServer(app, loop=loop, lifespan="off") as server, request(server, path) as sock:
        if path != b"wait":
            head(sock)
        wait_for(lambda: app.begun == 1)
        stop(server)
    assert app.told == [{b"open": 1012, b"close": 3000}.get(path, 1006)]
    assert app.ended == ["CancelledError"]


@pytest.mark.parametrize("left", [True, False])
def test_receiving_late_after_shutdown(left: bool) -> None:
    """The application is busy with something else when the server begins to end."""

    async def receive_late(receive: Any, app: App) -> None:
        app.note(await receive())
        await asyncio.sleep(0.5)
        app.note(await receive())

    app = App(receive_late)
    with UvicornServer(app, lifespan="off") as server:
        with request(server, b"open") as sock:
            head(sock)
            if not left:
                stop(server)
        if left:
            wait_for(lambda: len(app.told) == 1)
            stop(server)
    assert app.told == [1006 if left else 1012]
    assert app.ended == ["CancelledError"]


def test_receiving_in_a_task() -> None:
    """Like Channels: the end of the receiving task is seen by the task that waits for it."""

    async def receive_in_a_task(receive: Any, app: App) -> None:
        other = asyncio.ensure_future(asyncio.sleep(GUARD))
        try:
            while not other.done():
                task = asyncio.ensure_future(receive())
                await asyncio.wait([task, other], return_when=asyncio.FIRST_COMPLETED)
                app.note(task.result())
        finally:
            other.cancel()

    app = App(receive_in_a_task)
    with UvicornServer(app, lifespan="off") as server:
        leave(server, app)
        wait_for(lambda: app.told == [1006])
        assert answers_http(server.address)
        stop(server)
    assert app.ended == ["CancelledError"]


@LOOPS
@ENDINGS
def test_wait_cancelled(loop: str, end: Any, code: int) -> None:
    """A futile wait can be cancelled repeatedly."""
    limits = []

    async def receive_with_limit(receive: Any, app: App) -> None:
        while not app.told:
            app.note(await receive())
        for _ in range(3):
            try:
                await asyncio.wait_for(receive(), 0.05)
            except asyncio.TimeoutError:
                limits.append("over")
        waits = [asyncio.ensure_future(receive()) for _ in range(2)]
        await asyncio.sleep(0.05)
        for wait in waits:
            assert not wait.done()
            wait.cancel()
        await asyncio.wait(waits)
        limits.extend("cancelled" for wait in waits if wait.cancelled())

    app = App(receive_with_limit)
    with UvicornServer(app, loop=loop, lifespan="off") as server:
        end(server, app)
        wait_for(lambda: app.ended == ["return"])
        assert limits == ["over"] * 3 + ["cancelled"] * 2
        wait_for(lambda: server.tasks == 0 and server.connections == 0)


def test_swallowed_cancellation() -> None:
    """An application that ignores that too is left to uvicorn's deadline; meanwhile it delays nothing."""
    counts = [0]

    async def receive_whatever_happens(receive: Any, app: App) -> None:
        guard = time.monotonic() + GUARD
        while time.monotonic() < guard:
            counts[0] += 1
            with contextlib.suppress(Exception if counts[0] > 2 else BaseException):
                app.note(await receive())

    app = App(receive_whatever_happens)
    with UvicornServer(app, lifespan="off", timeout_graceful_shutdown=1) as server:
        leave(server, app)
        wait_for(lambda: app.told == [1006])
        stop(server)
    # The event, the wait that the end of the server ends, and the one that uvicorn cancels.
    assert counts == [3]


def test_counted_connections() -> None:
    """Applications whose client has left count as one connection, and as none when they have ended."""
    app = App()
    with UvicornServer(app, lifespan="off") as server:
        for _ in range(5):
            leave(server, app)
        wait_for(lambda: len(app.told) == 5)
        assert (server.tasks, server.connections) == (5, 1)
        stop(server)
        assert server.server.server_state.connections == set()


@pytest.mark.parametrize("path", [b"nothing", b"deny"])
def test_sending_nothing(path: bytes) -> None:
    """Events without content let other tasks run too."""
    turns = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

        async def tick() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        if path == b"deny":
            await send({"type": "websocket.http.response.start", "status": 429, "headers": []})
            event: Any = {"type": "websocket.http.response.body", "body": b"", "more_body": True}
        else:
            await send({"type": "websocket.accept"})
            event = {"type": "websocket.send", "text": None}
        ticker = asyncio.ensure_future(tick())
        for _ in range(100):
            await send(event)
        ticker.cancel()
        if path == b"deny":
            await send({"type": "websocket.http.response.body"})

    with UvicornServer(app, lifespan="off") as server, request(server, path) as sock:
        head(sock)
        wait_for(lambda: server.tasks == 0)
    assert len(turns) >= 50


# A process, as users start it.


APP = f"""
import time

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({{"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}})
        await send({{"type": "http.response.body", "body": b"hi"}})
        return
    await receive()
    if scope["path"] == "/reject":
        await send({{"type": "websocket.close"}})
    elif scope["path"] != "/wait":
        await send({{"type": "websocket.accept"}})
    print("begun", flush=True)
    guard = time.monotonic() + {GUARD}
    while time.monotonic() < guard:
        await receive()
"""


@LOOPS
@pytest.mark.parametrize("path", [b"open", b"wait", b"reject"])
def test_sigterm(tmp_path: Path, loop: str, path: bytes) -> None:
    (tmp_path / "served.py").write_text(textwrap.dedent(APP))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        command = [sys.executable, "-m", "uvicorn", "served:app", "--fd", str(listening.fileno()), "--ws", OURS]
        process = subprocess.Popen(
            [*command, "--lifespan", "off", "--loop", loop],
            cwd=tmp_path,
            pass_fds=[listening.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        assert process.stdout is not None
        with socket.create_connection(address) as sock:
            sock.sendall(REQUEST % path)
            while "begun" not in (line := process.stdout.readline()):
                assert line, "uvicorn did not start"
        assert answers_http(address)
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        output = process.communicate(timeout=GUARD + load_scaled(SOON))[0]
        assert time.monotonic() - begin < load_scaled(SOON)
        assert "Traceback" not in output
    finally:
        process.kill()
        process.wait()
