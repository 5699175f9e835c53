"""Ends of connections and servers: shutdown, clients that do not answer, processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets.asyncio.client as client
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from support.certificates import Certificates
from support.load_scaling import load_scaled
from support.uvicorn_server import OURS, THEIRS, UvicornServer

pytestmark = pytest.mark.wirespeed_only("uvicorn has its own implementation for websockets")

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [OURS, THEIRS], ids=["ours", "theirs"])
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
TIMEOUT = 30
ROOT = Path(__file__).parents[2]

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def run(coroutine: Any) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(coroutine, TIMEOUT)

    return asyncio.run(limited())


def raw(server: UvicornServer, *, more: bytes = b"") -> socket.socket:
    sock = socket.create_connection(server.address)
    sock.settimeout(TIMEOUT)
    sock.sendall(REQUEST)
    if more:
        sock.sendall(more)
    return sock


def head(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1)
    return data


def rest(sock: socket.socket) -> bytes:
    """Returns all data up to the end of any kind."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


class App:
    """An application that accepts by default, and records events."""

    def __init__(self, accept: bool = True) -> None:
        self.accept = accept
        self.seen: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        if self.accept:
            await send({"type": "websocket.accept"})
        while True:
            event = await receive()
            self.seen.append(event.get("code", event.get("text")))
            if event["type"] == "websocket.disconnect":
                return
            await send({"type": "websocket.send", "text": event["text"]})


@IMPLEMENTATIONS
@LOOPS
def test_shutdown(implementation: str, loop: str) -> None:
    app = App()

    async def main(server: UvicornServer) -> Any:
        async with client.connect(server.uri) as one, client.connect(server.uri) as two:
            await one.send("x")
            assert await one.recv() == "x"
            server.begin_stop()
            ends = []
            for ws in (one, two):
                with pytest.raises(ConnectionClosed):
                    await ws.recv()
                ends.append((ws.close_code, ws.close_reason))
            return ends

    with UvicornServer(app, ws=implementation, loop=loop, lifespan="off") as server:
        assert run(main(server)) == [(1012, ""), (1012, "")]
    assert app.seen == ["x", 1012, 1012]


@IMPLEMENTATIONS
@LOOPS
async def test_shutdown_before_accept(implementation: str, loop: str) -> None:
    app = App(accept=False)
    with UvicornServer(app, ws=implementation, loop=loop, lifespan="off") as server:
        asyncio.get_running_loop().call_later(0.2, server.begin_stop)
        with pytest.raises(InvalidStatus) as caught:
            async with client.connect(server.uri):
                pass
        assert caught.value.response.status_code == 500
    assert app.seen == [1006]


@LOOPS
async def test_endings_over_tls(loop: str, certificates: Certificates) -> None:
    app = App()
    cert, key = certificates.server_files()
    context = ssl.create_default_context(cafile=certificates.ca_file)
    with UvicornServer(app, loop=loop, lifespan="off", ssl_certfile=cert, ssl_keyfile=key) as server:
        async with client.connect(server.uri, ssl=context) as ws:
            await ws.close(3000)
        async with client.connect(server.uri, ssl=context) as ws:
            await asyncio.sleep(0.1)
            ws.transport.abort()
        await asyncio.sleep(0.1)
        async with client.connect(server.uri, ssl=context) as ws:
            server.begin_stop()
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1012
    assert app.seen == [3000, 1006, 1012]


@LOOPS
def test_shutdown_with_a_client_that_does_not_answer(loop: str) -> None:
    app = App()
    with UvicornServer(app, loop=loop, lifespan="off") as server:
        sock = raw(server)
        assert b" 101 " in head(sock)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < load_scaled(5)
        assert rest(sock) == b"\x88\x02\x03\xf4"
        sock.close()
    assert app.seen == [1012]


def test_shutdown_while_sending() -> None:
    """A client that does not read delays the shutdown by at most the close timeout."""
    errors = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "bytes": bytes(2**20)})
        except OSError as exc:
            errors.append(type(exc).__name__)
            raise

    with UvicornServer(app, lifespan="off") as server:
        sock = raw(server)
        head(sock)
        time.sleep(0.3)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < load_scaled(15)
        sock.close()
    assert errors == ["ClientDisconnected"]


def test_shutdown_after_the_application_has_closed() -> None:
    """The client has not answered the close frame yet."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 3000})

    with UvicornServer(app, lifespan="off") as server:
        sock = raw(server)
        head(sock)
        time.sleep(0.1)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < load_scaled(5)
        assert rest(sock) == b"\x88\x02\x0b\xb8"
        sock.close()


def test_shutdown_with_a_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn cancels applications that do not end."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.sleep(3600)

    async def main(server: UvicornServer) -> int | None:
        async with client.connect(server.uri) as ws:
            server.begin_stop()
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            return ws.close_code

    with UvicornServer(app, lifespan="off", timeout_graceful_shutdown=1) as server:
        assert run(main(server)) == 1012
    assert "timeout graceful shutdown exceeded" in caplog.text


def test_an_application_that_is_cancelled() -> None:
    """Its task is cancelled, and its client gets a close frame."""
    tasks: list[asyncio.Task[Any] | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        tasks.append(asyncio.current_task())
        await asyncio.sleep(3600)

    with UvicornServer(app, lifespan="off") as server, raw(server) as sock:
        head(sock)
        deadline = time.monotonic() + TIMEOUT
        while not tasks and time.monotonic() < deadline:
            time.sleep(0.005)
        task = tasks[0]
        assert task is not None
        task.get_loop().call_soon_threadsafe(task.cancel)
        assert rest(sock) == b"\x88\x02" + (1011).to_bytes(2, "big")
    assert task.cancelled()


class Waiting(App):
    """An application that accepts on command."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.go: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop, self.go = asyncio.get_running_loop(), asyncio.Event()
        await self.go.wait()
        await super().__call__(scope, receive, send)

    def proceed(self) -> None:
        assert self.loop is not None
        assert self.go is not None
        self.loop.call_soon_threadsafe(self.go.set)


@IMPLEMENTATIONS
@LOOPS
def test_early_bytes(implementation: str, loop: str) -> None:
    """Data that a client sends before the response is not lost."""
    app = Waiting()
    with UvicornServer(app, ws=implementation, loop=loop, lifespan="off") as server, raw(server) as sock:
        time.sleep(0.1)
        for text in (b"a", b"b"):
            sock.sendall(b"\x81\x81\0\0\0\0" + text)
            time.sleep(0.05)
        app.proceed()
        assert b" 101 " in head(sock)
        assert sock.recv(3) + sock.recv(3) == b"\x81\x01a\x81\x01b"


@LOOPS
def test_many_early_bytes(loop: str) -> None:
    """Such data is stored up to a limit, and none is lost."""
    count = 3000
    data = (b"\x81\xfe" + (1000).to_bytes(2, "big") + bytes(4) + b"x" * 1000) * count
    expected = (b"\x81\x7e" + (1000).to_bytes(2, "big") + b"x" * 1000) * count
    app = Waiting()
    with UvicornServer(app, loop=loop, lifespan="off") as server, raw(server) as sock:
        time.sleep(0.1)
        writer = threading.Thread(target=sock.sendall, args=(data,))
        writer.start()
        time.sleep(0.3)
        app.proceed()
        assert b" 101 " in head(sock)
        got = bytearray()
        while len(got) < len(expected):
            got += sock.recv(2**18) or pytest.fail("the server has ended it")
        writer.join()
        assert got == expected


@IMPLEMENTATIONS
@LOOPS
def test_client_that_answers_no_pings(implementation: str, loop: str) -> None:
    app = App()
    options = {"ws_ping_interval": 0.2, "ws_ping_timeout": 0.2}
    with UvicornServer(app, ws=implementation, loop=loop, lifespan="off", **options) as server:
        sock = raw(server)
        head(sock)
        data = rest(sock)
        sock.close()
    assert data[:2] == b"\x89\x04"
    assert data[6:] == b"\x88\x18" + (1011).to_bytes(2, "big") + b"keepalive ping timeout"
    # uvicorn's own implementation only reports that the connection is lost.
    assert app.seen == [1011 if implementation == OURS else 1005]


@IMPLEMENTATIONS
@pytest.mark.parametrize("interval", [None, 0])
def test_pings_switched_off(implementation: str, interval: float | None) -> None:
    with UvicornServer(App(), ws=implementation, lifespan="off", ws_ping_interval=interval) as server:
        sock = raw(server)
        head(sock)
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.close()


async def test_pings_answered() -> None:
    with UvicornServer(App(), lifespan="off", ws_ping_interval=0.1, ws_ping_timeout=0.5) as server:
        async with client.connect(server.uri, ping_interval=0.1) as ws:
            await asyncio.sleep(1)
            await ws.send("x")
            assert await ws.recv() == "x"


def test_client_that_never_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A refused client that does not close is disconnected, at shutdown at the latest."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close"})

    with UvicornServer(app, lifespan="off") as server:
        sock = raw(server)
        assert b" 403 " in head(sock)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < load_scaled(5)
        assert rest(sock) == b""
        sock.close()


@LOOPS
@pytest.mark.parametrize("kind", ["websocket.close", "websocket.http.response.start"])
def test_client_that_leaves_before_it_is_refused(loop: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The response is answered by a reset, which the transport has not noticed when its end is sent."""
    gone, ends = threading.Event(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        # The loop does not see the end of the client before the answer is written.
        gone.wait(TIMEOUT)
        try:
            if kind == "websocket.close":
                await send({"type": kind})
            else:
                await send({"type": kind, "status": 429, "headers": []})
                await send({"type": "websocket.http.response.body", "body": b"no"})
            ends.append((await receive())["code"])
        except OSError as exc:
            ends.append(exc)

    with UvicornServer(app, loop=loop, lifespan="off") as server:
        raw(server).close()
        gone.set()
        deadline = time.monotonic() + 5
        while not ends and time.monotonic() < deadline:
            time.sleep(0.01)
    assert ends == [1006]
    assert "Traceback" not in caplog.text


# Processes


APP = """
import os

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    await receive()
    if scope["path"] == "/exit":
        raise SystemExit(7)
    if scope["path"] == "/wait":
        print("waiting", flush=True)
        await receive()
        return
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": str(os.getpid())})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": event["text"]})
    print("disconnect", event["code"], flush=True)
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Command:
    """``uvicorn`` as users start it."""

    def __init__(self, folder: Path, port: int, *arguments: str) -> None:
        (folder / "served.py").write_text(textwrap.dedent(APP))
        self.uri = f"ws://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "served:app", "--port", str(port), "--ws", OURS, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        )
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert self.process.poll() is None
                time.sleep(0.02)

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=TIMEOUT)[0]
        finally:
            self.process.kill()


@pytest.fixture
def commands(tmp_path: Path, port: int) -> Iterator[Any]:
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(tmp_path, port, *arguments))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()
        command.process.communicate()


@LOOPS
def test_sigterm(commands: Any, loop: str) -> None:
    command = commands("--loop", loop)

    async def main() -> tuple[Any, ...]:
        async with client.connect(command.uri) as ws:
            await ws.recv()
            waiting = asyncio.ensure_future(client.connect(command.uri + "/wait").__aenter__())
            await asyncio.sleep(0.3)
            stopped = asyncio.get_running_loop().run_in_executor(None, command.stop)
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            with pytest.raises(InvalidStatus) as caught:
                await waiting
            return ws.close_code, caught.value.response.status_code, await stopped

    code, status, output = run(main())
    assert (code, status) == (1012, 500)
    assert "disconnect 1012" in output
    assert "Traceback" not in output
    assert '"WebSocket /" [accepted]' in output
    assert "Application shutdown complete." in output


@LOOPS
def test_an_application_that_ends_the_program(commands: Any, loop: str) -> None:
    command = commands("--loop", loop)

    async def main() -> None:
        with pytest.raises((InvalidStatus, InvalidMessage, OSError)):
            await client.connect(command.uri + "/exit")

    run(main())
    assert command.process.wait(TIMEOUT) == 7


def test_workers(commands: Any) -> None:
    command = commands("--workers", "2", "--no-access-log")

    async def main() -> set[str]:
        found: set[str] = set()
        deadline = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < deadline:
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(20):
                    with contextlib.suppress(OSError):
                        ws = await stack.enter_async_context(client.connect(command.uri))
                        found.add(str(await ws.recv()))
                        await ws.send("x")
                        assert await ws.recv() == "x"
        return found

    assert len(run(main())) == 2
    assert "Traceback" not in command.stop()
