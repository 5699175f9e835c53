"""The pings of the drop-in: ``ping_interval`` and ``ping_timeout`` behave as in the package."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from support.frames import CLOSE, PING, Close, frame
from support.pace import ENOUGH, check_pace, pace, time_pings
from support.scripted import Scripted, Wire
from support.serving import MASK, request

pytest.importorskip("websockets", minversion="17")


LIMIT = 20.0

INTERVAL = 0.1


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(main(), LIMIT))


def silent(wire: Wire) -> Any:
    wire.accept()
    return wire.read_until_close()


@contextlib.contextmanager
def dialled(address: tuple[str, int]) -> Iterator[tuple[Wire, float]]:
    """Yields a client's open end, and a time before the server's end was open."""
    with socket.create_connection(address) as sock:
        wire = Wire(sock)
        start = time.monotonic()
        wire.send(request())
        head = wire.read_request()
        assert head.startswith(b"HTTP/1.1 101"), head
        yield wire, start


# Clients


async def test_interval_of_a_client(client: Any, scripted: Scripted) -> None:
    server = scripted(pace(INTERVAL))
    async with client.asyncio.client.connect(server.uri, ping_interval=INTERVAL) as ws:
        assert await ws.recv() == ENOUGH
    check_pace(await server.wait_result(), INTERVAL)


def test_interval_of_a_blocking_client(client: Any, scripted: Scripted) -> None:
    server = scripted(pace(INTERVAL))
    with client.sync.client.connect(server.uri, ping_interval=INTERVAL) as ws:
        assert ws.recv(timeout=LIMIT) == ENOUGH
    check_pace(server.result, INTERVAL)


async def test_timeout_of_a_client(client: Any, scripted: Scripted) -> None:
    server = scripted(silent)
    connecting = client.asyncio.client.connect(server.uri, ping_interval=0.1, ping_timeout=0.2, close_timeout=0.1)
    async with connecting as ws:
        start = time.monotonic()
        with pytest.raises(client.ConnectionClosedError) as raised:
            await ws.recv()
        assert time.monotonic() - start >= 0.25
        assert raised.value.sent.code == 1011
    frames, end = await server.wait_result()
    assert {frame.opcode for frame in frames} == {PING}
    assert end == Close(1011, "keepalive ping timeout")


async def test_no_pings_of_a_client(client: Any, scripted: Scripted) -> None:
    server = scripted(silent)
    async with client.asyncio.client.connect(server.uri, ping_interval=None, ping_timeout=0.05, close_timeout=0.1):
        await asyncio.sleep(0.2)
    assert await server.wait_result() == ([], Close(1000))


# Servers


def test_interval_of_a_server(server: Any) -> None:
    async def main() -> Any:
        async def handler(ws: Any) -> None:
            await ws.wait_closed()

        async with server.asyncio.server.serve(handler, "127.0.0.1", 0, ping_interval=INTERVAL) as running:
            return await asyncio.to_thread(count, running.sockets[0].getsockname()[:2])

    check_pace(run(main), INTERVAL)


def test_interval_of_a_blocking_server(server: Any) -> None:
    def handler(ws: Any) -> None:
        for _ in ws:
            pass

    with server.sync.server.serve(handler, "127.0.0.1", 0, ping_interval=INTERVAL) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            check_pace(count(running.socket.getsockname()[:2]), INTERVAL)
        finally:
            running.shutdown()
            thread.join(LIMIT)


def count(address: tuple[str, int]) -> list[tuple[float, bytes]]:
    with dialled(address) as (wire, start):
        pings = time_pings(wire, INTERVAL, start, mask=MASK)
        wire.send(frame(CLOSE, b"\x03\xe8", mask=MASK))
        while wire.read_frame().opcode != CLOSE:
            pass
        return pings
