"""Streams under load: a TCP tunnel with megabytes both ways, and ends that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from support.asyncio_tools import Run, Setting, cancelled, settled, soon, spin
from support.checks import within
from support.frames import binary, close
from support.scripted import Disconnected, Scripted, Wire
from support.servers import WebSocketsServer
from wirespeed import StreamClosedError, open_stream

pytestmark = pytest.mark.wirespeed_only("websockets has no streams")

Open = Callable[..., Any]

MEBIBYTE = 1 << 20


@pytest.fixture
def stream(setting: Setting) -> Open:
    return functools.partial(open_stream, io_backend=setting.io_backend)


# A tunnel: TCP client - our stream - third-party WebSocket server - TCP server


async def copy(reader: Any, writer: Any) -> None:
    """Copies bytes like every relay, without knowledge of WebSockets."""
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def tcp_server(handle: Callable[..., Any]) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def far_end(target: int) -> AsyncIterator[int]:
    """A WebSocket server that forwards to a TCP port: with the ``websockets`` library."""

    async def forward(ws: ServerConnection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target)

        async def outwards() -> None:
            with contextlib.suppress(ConnectionResetError):
                async for message in ws:
                    assert isinstance(message, bytes)
                    writer.write(message)
                    await writer.drain()
            writer.close()

        task = asyncio.ensure_future(outwards())
        with contextlib.suppress(ConnectionClosed, ConnectionResetError):
            # Odd sizes, so that boundaries of messages are everywhere.
            while data := await reader.read(random.randint(1, 100_000)):
                await ws.send(data)
        await ws.close()
        await task

    async with serve(forward, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
        yield server.sockets[0].getsockname()[1]


class Target:
    """A TCP server that hashes the bytes it gets and sends the bytes that its client requests.

    The client announces how many bytes follow and how many it wants; at the end it gets the digest of those that
    followed.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming, wanted = map(int, (await reader.readline()).split())

        async def answer() -> None:
            for start in range(0, wanted, 50_000):
                writer.write(self.content[start : min(start + 50_000, wanted)])
                await writer.drain()

        sending = asyncio.ensure_future(answer())
        digest = hashlib.sha256()
        while incoming:
            data = await reader.read(incoming)
            digest.update(data)
            incoming -= len(data)
        await sending
        writer.write(digest.digest())
        await writer.drain()
        await reader.read()
        writer.close()


async def client(port: int, content: bytes, wanted: int) -> tuple[bytes, bytes]:
    """Sends and receives at once, and returns the digests of the bytes received at each end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"%d %d\n" % (len(content), wanted))

    async def send() -> None:
        for start in range(0, len(content), 70_000):
            writer.write(content[start : start + 70_000])
            await writer.drain()

    sending = asyncio.ensure_future(send())
    digest = hashlib.sha256()
    while wanted:
        data = await reader.read(min(wanted, 65_536))
        assert data, "the tunnel ended early"
        digest.update(data)
        wanted -= len(data)
    await sending
    echoed = await reader.readexactly(32)
    writer.close()
    await writer.wait_closed()
    return digest.digest(), echoed


@contextlib.contextmanager
def in_thread(server: Callable[[], Any]) -> Iterator[Any]:
    """Runs a server in a thread with a loop of its own, until the context is left."""
    loop = asyncio.new_event_loop()
    stop: asyncio.Future[None] = loop.create_future()
    entered: list[Any] = []
    ready = threading.Event()

    async def main() -> None:
        async with server() as value:
            entered.append(value)
            ready.set()
            await stop

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield entered[0]
    finally:
        loop.call_soon_threadsafe(stop.set_result, None)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()


@pytest.mark.parametrize("count", [1, 4])
def test_tcp_tunnel(run: Run, stream: Open, count: int) -> None:
    """16 MiB out and 16 MiB in, at the same time, through one connection or several."""
    content = os.urandom(16 * MEBIBYTE // count)
    answer = random.Random(0).randbytes(16 * MEBIBYTE // count)

    async def main() -> None:
        relays: list[asyncio.Task[Any]] = []

        async def near_end(tcp_reader: Any, tcp_writer: Any) -> None:
            relays.append(asyncio.current_task())  # type: ignore[arg-type]
            reader, writer = await stream(f"ws://127.0.0.1:{far_port}")
            await asyncio.gather(copy(tcp_reader, writer), copy(reader, tcp_writer))

        async with tcp_server(near_end) as port:
            results = await asyncio.gather(*(client(port, content, len(answer)) for _ in range(count)))
            await asyncio.wait(relays)
        for relay in relays:
            relay.result()
        assert results == [(hashlib.sha256(answer).digest(), hashlib.sha256(content).digest())] * count

    with in_thread(lambda: tcp_server(Target(answer).serve)) as target, in_thread(lambda: far_end(target)) as far_port:
        run(main, timeout=50)


# An end that does not read


@pytest.mark.loop(timeout=40)
async def test_drain_waits_for_a_stalled_server(server: WebSocketsServer, stream: Open) -> None:
    sent = random.Random(3).randbytes(32 * MEBIBYTE)
    reader, writer = await stream(f"{server.uri}/stalled", message_size=50_000)
    written = 0

    async def write() -> None:
        nonlocal written
        for start in range(0, len(sent), 100_000):
            writer.write(sent[start : start + 100_000])
            await writer.drain()
            written += 100_000

    writing = asyncio.ensure_future(write())
    await settled(lambda: written)
    assert not writing.done()
    # About as much as the kernel buffers.
    assert writer.connection.stats()["send_queue_bytes"] < 1 * MEBIBYTE
    server.release()
    found = hashlib.sha256()
    left = len(sent)
    while left:
        data = await reader.read(left)
        found.update(data)
        left -= len(data)
    await writing
    assert found.digest() == hashlib.sha256(sent).digest()
    writer.close()
    await writer.wait_closed()


@pytest.mark.loop(timeout=40)
async def test_writing_without_drain_loses_nothing(server: WebSocketsServer, stream: Open) -> None:
    """As with asyncio the data is queued, and sent when there is room."""
    sent = random.Random(4).randbytes(24 * MEBIBYTE)
    reader, writer = await stream(server.uri)
    for start in range(0, len(sent), 1_000_000):
        writer.write(sent[start : start + 1_000_000])
        if start % 3_000_000 == 0:
            await asyncio.sleep(0)
    assert await reader.readexactly(len(sent)) == sent
    await writer.drain()
    await spin()
    assert len(asyncio.all_tasks()) == 1
    writer.close()
    await writer.wait_closed()


async def test_cancelled_drain_loses_nothing(scripted: Scripted, stream: Open) -> None:
    sent = random.Random(5).randbytes(12 * MEBIBYTE)

    def script(wire: Wire) -> bytes:
        wire.accept()
        server.pause()
        frames, _ = wire.read_until_close()
        wire.send(close(1000))
        return b"".join(each.payload for each in frames)

    server = scripted(script, receive_buffer=4096)
    _, writer = await stream(server.uri)
    writer.write(sent)
    for _ in range(3):
        draining = asyncio.ensure_future(writer.drain())
        await spin()
        assert await cancelled(draining)
    server.release.set()
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await server.wait_result() == sent


async def test_close_sends_megabytes_first(scripted: Scripted, stream: Open) -> None:
    sent = random.Random(6).randbytes(12 * MEBIBYTE)

    def script(wire: Wire) -> bytes:
        wire.accept()
        time.sleep(0.1)
        frames, _ = wire.read_until_close()
        wire.send(close(1000))
        return b"".join(each.payload for each in frames)

    server = scripted(script, receive_buffer=4096)
    _, writer = await stream(server.uri)
    writer.write(sent)
    writer.close()
    await writer.wait_closed()
    assert await server.wait_result() == sent


def test_close_gives_up_a_stalled_server(scripted: Scripted, run: Run, stream: Open) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script, receive_buffer=4096)

    async def main() -> None:
        _, writer = await stream(server.uri, close_timeout=0.3)
        writer.write(bytes(12 * MEBIBYTE))
        writer.close()
        with within(5, at_least=0.3), pytest.raises(StreamClosedError):
            await writer.wait_closed()

    run(main)
    server.release.set()


async def test_drain_ends_with_the_connection(scripted: Scripted, stream: Open) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        wire.reset()

    server = scripted(script, receive_buffer=4096)
    reader, writer = await stream(server.uri)
    writer.write(bytes(12 * MEBIBYTE))
    draining = asyncio.ensure_future(writer.drain())
    reading = asyncio.ensure_future(reader.read(1))
    await soon(server.reached.is_set)
    assert not draining.done()
    server.release.set()
    for task in (draining, reading):
        with pytest.raises(StreamClosedError):
            await task
    writer.close()
    with pytest.raises(StreamClosedError):
        await writer.wait_closed()


@pytest.mark.loop(timeout=40)
async def test_unread_bytes_stop_the_server(scripted: Scripted, stream: Open) -> None:
    """Nothing is dropped, and memory is bounded: the server's `send` waits."""
    block = random.Random(7).randbytes(10_000)
    total = 4000
    progress = [0]

    def script(wire: Wire) -> None:
        wire.accept()
        try:
            for _ in range(total):
                wire.send(binary(block))
                progress[0] += 1
        except Disconnected:
            return
        wire.send(close(1000))
        wire.read_until_close()

    server = scripted(script)
    reader, writer = await stream(server.uri, limit=20_000)
    await soon(lambda: progress[0] > 0)
    assert await settled(lambda: progress[0]) < total
    assert writer.connection.stats()["receive_queue_bytes"] < 1 * MEBIBYTE
    expected, found = hashlib.sha256(block * total), hashlib.sha256()
    while data := await reader.read(30_000):
        found.update(data)
    assert found.digest() == expected.digest()


async def test_write_eof_drops_nothing(scripted: Scripted, stream: Open) -> None:
    """A server may read the close frame late and slowly: everything before it is read."""
    block = random.Random(8).randbytes(10_000)

    def script(wire: Wire) -> None:
        wire.accept(then=binary(block) * 10)
        wire.read_until_close()
        for _ in range(490):
            wire.send(binary(block))
        wire.send(close(1000))

    server = scripted(script)
    reader, writer = await stream(server.uri, limit=20_000)
    writer.write_eof()
    found = bytearray()
    while data := await reader.read(70_000):
        found += data
        if len(found) < 1_000_000:
            await asyncio.sleep(0.01)
    assert found == block * 500
    await writer.wait_closed()


async def test_close_timeout_raises_instead_of_end_of_stream(scripted: Scripted, stream: Open) -> None:
    """A reader that is too slow after write_eof() gets an error: a part must not look like the whole."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        with contextlib.suppress(Disconnected):
            for _ in range(3000):
                wire.send(binary(bytes(10_000)))
            wire.send(close(1000))

    server = scripted(script, receive_buffer=4096)
    reader, writer = await stream(server.uri, limit=20_000, close_timeout=0.3)
    writer.write_eof()
    await asyncio.sleep(0.6)
    with pytest.raises(StreamClosedError):
        await reader.readexactly(30_000_000)
    assert len(await reader.read(30_000_000)) < 30_000_000
    with pytest.raises(StreamClosedError):
        await reader.read(1)
    await writer.wait_closed()
