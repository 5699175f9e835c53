"""Errors of an ended stream about written bytes: it raises only if some were lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, Setting, cancelled, spin
from support.checks import within
from support.frames import binary, close
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from wirespeed import StreamClosedError, open_stream

pytestmark = pytest.mark.wirespeed_only("websockets has no streams")

Open = Callable[..., Any]
Ending = Callable[[Callable[[Wire], None]], ScriptedServer]

PIECE = bytes(4096)


@pytest.fixture
def stream(setting: Setting) -> Open:
    return functools.partial(open_stream, io_backend=setting.io_backend)


async def fill(writer: Any) -> int:
    """Writes until the system's buffer is full; returns the number of bytes. The connection has the rest in its own
    buffer.
    """
    for number in range(1, 2000):
        writer.write(PIECE)
        await spin(3)
        if writer.connection.stats()["send_queue_bytes"] > 4 * len(PIECE):
            return number * len(PIECE)
    raise AssertionError("the system takes everything")


def resets(wire: Wire) -> None:
    wire.reset()


def closes(wire: Wire) -> None:
    """Closes properly without having read the sent data."""
    wire.send(close(1000))


def reads(wire: Wire) -> None:
    """Reads everything, and then closes."""
    wire.read_until_close()
    wire.send(close(1000))


@pytest.fixture
def ending(scripted: Scripted) -> Ending:
    """Servers that read nothing until the test releases them, and then end the connection in different ways."""

    def serve(end: Callable[[Wire], None]) -> ScriptedServer:
        def script(wire: Wire) -> None:
            wire.accept()
            server.pause()
            end(wire)

        server = scripted(script, receive_buffer=4096)
        return server

    return serve


@pytest.mark.parametrize("eof", [False, True])
def test_closed_while_the_server_reads_nothing(ending: Ending, run: Run, stream: Open, eof: bool) -> None:
    """Data that the server has not read when ``close_timeout`` is over is lost."""
    server = ending(resets)

    async def main() -> None:
        _, writer = await stream(server.uri, close_timeout=0.3)
        await fill(writer)
        with within(2, at_least=0.3):
            (writer.write_eof if eof else writer.close)()
            with pytest.raises(StreamClosedError):
                await writer.wait_closed()
        with pytest.raises(StreamClosedError):
            await writer.wait_closed()

    try:
        run(main)
    finally:
        server.release.set()


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("end", [resets, closes])
async def test_ended_by_a_server_that_reads_nothing(
    ending: Ending, stream: Open, end: Callable[[Wire], None], closing: bool
) -> None:
    server = ending(end)
    _, writer = await stream(server.uri)
    await fill(writer)
    if closing:
        writer.close()
    server.release.set()
    with pytest.raises(StreamClosedError):
        await writer.wait_closed()


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_aborted(ending: Ending, run: Run, stream: Open, full: bool, closing: bool) -> None:
    """After an abort by the user, data written in the same turn of the loop and queued data is lost."""
    server = ending(resets)

    async def main() -> None:
        _, writer = await stream(server.uri)
        if full:
            await fill(writer)
        else:
            writer.write(b"x")
        writer.connection.abort()
        if closing:
            writer.close()
        with pytest.raises(StreamClosedError):
            await writer.wait_closed()

    try:
        run(main)
    finally:
        server.release.set()


async def test_after_a_failed_drain(ending: Ending, stream: Open) -> None:
    """And after a cancelled drain, whose error was never raised."""
    server = ending(resets)
    _, writer = await stream(server.uri)
    await fill(writer)
    draining = asyncio.ensure_future(writer.drain())
    await spin()
    assert await cancelled(draining)
    draining = asyncio.ensure_future(writer.drain())
    server.release.set()
    with pytest.raises(StreamClosedError):
        await draining
    with pytest.raises(StreamClosedError):
        await writer.wait_closed()


# Nothing is lost


@pytest.mark.parametrize("draining", [False, True])
async def test_read_late(ending: Ending, stream: Open, draining: bool) -> None:
    """The server reads late, but reads everything."""
    server = ending(reads)
    _, writer = await stream(server.uri)
    await fill(writer)
    server.release.set()
    if draining:
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_closed_by_the_server_after_reading(scripted: Scripted, stream: Open) -> None:
    """The server closes late; no task has waited for the writes."""
    sizes: list[int] = []

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()
        received = 0
        while received < sizes[0]:
            received += len(wire.read_frame().payload)
        wire.send(close(1000))
        wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    _, writer = await stream(server.uri)
    sizes.append(await fill(writer))
    server.release.set()
    await writer.wait_closed()


def test_answer_to_the_last_message(scripted: Scripted, run: Run, stream: Open) -> None:
    """The answer is sent although the close frame of the server has arrived with that message: all in one turn of the
    loop.
    """

    def script(wire: Wire) -> bytes:
        wire.accept()
        wire.send(binary(b"question") + close(1000))
        frames, _ = wire.read_until_close()
        return b"".join(frame.payload for frame in frames)

    server = scripted(script)

    async def main() -> bool:
        reader, writer = await stream(server.uri)
        assert await reader.read(100) == b"question"
        writer.write(b"answer")
        assert await reader.read() == b""
        try:
            await writer.wait_closed()
        except StreamClosedError:
            return True
        return False

    assert run(main) == (server.result == b"")


async def test_no_tasks_after_reading(ending: Ending, stream: Open) -> None:
    """One task exists while the server does not read the written data, and none before and after."""
    server = ending(reads)
    before = len(asyncio.all_tasks())
    _, writer = await stream(server.uri)
    writer.write(b"x")
    await spin()
    assert len(asyncio.all_tasks()) == before
    await fill(writer)
    assert len(asyncio.all_tasks()) == before + 1
    server.release.set()
    await writer.drain()
    await spin()
    assert len(asyncio.all_tasks()) == before
    writer.close()
    await writer.wait_closed()


async def test_echoed_without_drain(server: WebSocketsServer, stream: Open) -> None:
    """Writes, reads and the end in any turn of the loop raise nothing."""
    for turns in range(4):
        reader, writer = await stream(server.uri)
        for size in (1, 1000, 70_000, 200_000):
            writer.write(bytes(size))
            await spin(turns)
            assert len(await reader.readexactly(size)) == size
        await spin(turns)
        writer.close()
        await writer.wait_closed()
