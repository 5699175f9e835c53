"""Closing as in websockets: codes, time limits, and what ends connections from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from wirespeed.compat import websockets

pytest.importorskip("websockets", minversion="17")

from websockets.server import ServerProtocol


class OURS:
    """The drop-in, where it is one end only."""

    asyncio = websockets.asyncio
    sync = websockets.sync


def run(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


@contextlib.asynccontextmanager
async def connected(client: Any, server: Any, handler: Any, **options: Any) -> AsyncIterator[Any]:
    async with server.asyncio.server.serve(handler, "127.0.0.1", 0) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
        async with client.asyncio.client.connect(uri, **options) as ws:
            yield ws


@contextlib.contextmanager
def connected_blocking(client: Any, server: Any, handler: Any, **options: Any) -> Iterator[Any]:
    with server.sync.server.serve(handler, "127.0.0.1", 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            uri = f"ws://127.0.0.1:{running.socket.getsockname()[1]}"
            with client.sync.client.connect(uri, **options) as ws:
                yield ws
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize("code", [1005, 1006, 1004, 999, 5000])
def test_codes_that_cannot_be_sent(package: Any, code: int) -> None:
    async def main() -> None:
        async def handler(ws: Any) -> None:
            await ws.wait_closed()

        async with connected(package, package, handler) as ws:
            with pytest.raises(package.exceptions.ProtocolError):
                await ws.close(code)
            assert ws.state is package.State.OPEN
            await ws.close(3000)
            await ws.close(code)  # nothing, by now
            assert ws.close_code == 3000

    run(main)


@pytest.mark.parametrize("code", [1005, 999])
def test_codes_that_cannot_be_sent_by_threads(package: Any, code: int) -> None:
    with connected_blocking(package, package, lambda ws: ws.recv()) as ws:
        with pytest.raises(package.exceptions.ProtocolError):
            ws.close(code)
        ws.close(3000)
        ws.close(code)
        assert ws.close_code == 3000


def test_codes_that_a_server_cannot_send() -> None:
    async def main() -> None:
        async with (
            websockets.serve(lambda ws: ws.wait_closed(), "127.0.0.1", 0) as server,
            websockets.connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}") as ws,
        ):
            with pytest.raises(websockets.ProtocolError):
                server.close(code=1005)
            server.close(code=1012)
            await ws.wait_closed()
            assert ws.close_code == 1012

    run(main)
    with websockets.sync.server.serve(lambda ws: ws.recv(), "127.0.0.1", 0) as server:
        with pytest.raises(websockets.ProtocolError):
            server.shutdown(code=1005)
        assert server.sockets


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts and then says nothing more, and closes nothing."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                protocol = ServerProtocol()
                while not (events := protocol.events_received()):
                    protocol.receive_data(sock.recv(4096))
                protocol.send_response(protocol.accept(events[0]))  # type: ignore[arg-type]
                sock.sendall(b"".join(protocol.data_to_send()))
                done.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def test_a_close_timeout_that_is_changed(package: Any) -> None:
    async def main() -> None:
        with silent_server() as uri:
            ws = await package.asyncio.client.connect(uri, close_timeout=60)
            ws.close_timeout = 0.1
            began = time.monotonic()
            await ws.close()
            assert time.monotonic() - began < 20
            assert ws.state is package.State.CLOSED
            with pytest.raises(package.exceptions.ConnectionClosedError) as caught:
                await ws.recv()
            assert caught.value.sent.code == 1000

    run(main)


def test_a_close_timeout_that_a_thread_changes(package: Any) -> None:
    with silent_server() as uri, package.sync.client.connect(uri, close_timeout=60) as ws:
        ws.close_timeout = 0.1
        began = time.monotonic()
        ws.close()
        assert time.monotonic() - began < 20
        with pytest.raises(package.exceptions.ConnectionClosedError):
            ws.recv()


@pytest.mark.parametrize("code", [1006, 1011])
def test_failing_by_the_protocol(server: Any, code: int) -> None:
    """As libraries do that have lost patience with a peer. That of websockets waits for the next write."""

    async def main() -> None:
        closed = asyncio.get_running_loop().create_future()

        async def handler(ws: Any) -> None:
            await ws.wait_closed()
            closed.set_result(ws.close_code)

        async with connected(OURS, server, handler) as ws:
            ws.protocol.fail(code)
            assert ws.state is not websockets.State.OPEN
            assert await closed == code
            with pytest.raises(websockets.ConnectionClosedError):
                await ws.send("x")

    run(main)


def test_failing_by_the_protocol_of_a_thread(server: Any) -> None:
    ended = threading.Event()

    def handler(ws: Any) -> None:
        with pytest.raises(server.exceptions.ConnectionClosedError):
            ws.recv()
        ended.set()

    with connected_blocking(OURS, server, handler) as ws:
        ws.protocol.fail(1011)
        assert ended.wait(10)
        with pytest.raises(websockets.ConnectionClosedError):
            ws.send("x")
