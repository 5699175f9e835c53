"""Closing as in websockets: codes, time limits, and ends from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

from wirespeed.compat import websockets

pytest.importorskip("websockets", minversion="17")

from compat.pairs import connected, connected_blocking, run, silent_server


class OURS:
    """The drop-in, where it is one end only."""

    asyncio = websockets.asyncio
    sync = websockets.sync


@pytest.mark.parametrize("code", [1005, 1006, 1004, 999, 5000])
async def test_codes_that_cannot_be_sent(package: Any, code: int) -> None:
    async def handler(ws: Any) -> None:
        await ws.wait_closed()

    async with connected(package, package, handler) as ws:
        with pytest.raises(package.exceptions.ProtocolError):
            await ws.close(code)
        assert ws.state is package.State.OPEN
        await ws.close(3000)
        await ws.close(code)  # nothing, by now
        assert ws.close_code == 3000


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


async def test_a_close_timeout_that_is_changed(package: Any) -> None:
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
        assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_close_timeout_that_a_thread_changes(package: Any) -> None:
    with silent_server() as uri, package.sync.client.connect(uri, close_timeout=60) as ws:
        ws.close_timeout = 0.1
        began = time.monotonic()
        ws.close()
        assert time.monotonic() - began < 20
        with pytest.raises(package.exceptions.ConnectionClosedError) as caught:
            ws.recv()
        assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_close_timeout_that_is_negative(package: Any) -> None:
    """The time is over before it begins."""
    with silent_server() as uri:
        ws = await package.asyncio.client.connect(uri, close_timeout=60)
        ws.close_timeout = -1
        assert ws.close_timeout == -1
        await asyncio.wait_for(ws.close(), 5)
    with silent_server() as uri:
        ws = await package.asyncio.client.connect(uri, close_timeout=-1)
        assert ws.close_timeout == -1
        await asyncio.wait_for(ws.close(), 5)


def test_a_close_timeout_of_a_thread_that_is_negative(package: Any) -> None:
    for first, later in ((60, -1), (-1, -1)):
        with silent_server() as uri, package.sync.client.connect(uri, close_timeout=first) as ws:
            ws.close_timeout = later
            assert ws.close_timeout == later
            began = time.monotonic()
            ws.close()
            assert time.monotonic() - began < 5


@pytest.mark.parametrize("longer", [0.3, None])
def test_a_close_timeout_that_is_raised(package: Any, longer: float | None) -> None:
    async def main() -> None:
        with silent_server() as uri:
            ws = await package.asyncio.client.connect(uri, close_timeout=0.05)
            ws.close_timeout = longer
            assert ws.close_timeout == longer
            began = time.monotonic()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ws.close(), 0.4)
            assert time.monotonic() - began >= 0.3
            await abort(ws)

    async def abort(ws: Any) -> None:
        ws.transport.abort()
        await ws.wait_closed()

    run(main)


async def test_a_peer_that_does_not_end_tcp(package: Any) -> None:
    """The closing handshake is complete, and the close timeout ends the connection nevertheless."""
    with silent_server(close_code=1001) as uri:
        ws = await package.asyncio.client.connect(uri, close_timeout=0.1)
        await ws.close()
        with pytest.raises(package.exceptions.ConnectionClosedOK) as caught:
            await ws.recv()
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert caught.value.rcvd.code == 1001


def test_a_peer_that_does_not_end_tcp_towards_a_thread(package: Any) -> None:
    with silent_server(close_code=1001) as uri, package.sync.client.connect(uri, close_timeout=0.1) as ws:
        ws.close()
        with pytest.raises(package.exceptions.ConnectionClosedOK) as caught:
            ws.recv()
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert caught.value.rcvd.code == 1001


@pytest.mark.parametrize("code", [1006, 1011])
async def test_failing_by_the_protocol(server: Any, code: int) -> None:
    """As libraries do that give up a peer. websockets waits for the next write."""
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


async def test_the_code_of_a_connection_that_is_not_closed_yet(package: Any) -> None:
    """The close frame has arrived, TCP is still open: the code exists only after the complete end."""
    with silent_server(close_code=1001) as uri:
        async with package.asyncio.client.connect(uri, close_timeout=0.2) as ws:
            while ws.state is package.State.OPEN:
                await asyncio.sleep(0.01)
            for holder in (ws, ws.protocol):
                assert (holder.close_code, holder.close_reason) == (None, None)
        assert (ws.close_code, ws.close_reason) == (1001, "going")
