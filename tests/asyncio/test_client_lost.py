"""Peers that break the rules of closing, and lost connections."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, soon
from support.checks import as_close, no_leaks, within
from support.connecting import Connect
from support.frames import BINARY, TEXT, Close, close, frame, text
from support.scripted import Disconnected, Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import exceptions


def test_no_reply_to_close(run: Run, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.read_to_end()
        return received

    async def main(uri: str) -> None:
        ws = await connect(uri, close_timeout=0.3)
        with within(3, at_least=0.3):
            await ws.close(1000, "bye")
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            await ws.recv()
        assert raised.value.rcvd is None
        assert as_close(raised.value.sent) == Close(1000, "bye")
        assert ws.close_code == 1006

    with no_leaks(), ScriptedServer(script) as server:
        run(lambda: main(server.uri))


async def test_no_reply_to_close_but_data(scripted: Scripted, connect: Connect) -> None:
    """A server that keeps sending does not extend the deadline."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        try:
            while not server.release.wait(0.01):
                wire.send(text("x" * 100))
        except Disconnected:
            pass

    server = scripted(script)
    ws = await connect(server.uri, close_timeout=0.3)
    with within(3, at_least=0.3):
        await ws.close()
    assert ws.close_code == 1006


@pytest.mark.wirespeed_only("websockets stops reading when its queue is full, so close waits for its timeout")
@pytest.mark.parametrize("size", [10, 64, 100_000])
async def test_close_under_a_flood(scripted: Scripted, connect: Connect, size: int) -> None:
    """The server sends as fast as it can until it sees the close frame; the application no longer receives."""
    block = frame(BINARY, bytes(size)) * max(1, 65_536 // size)

    def script(wire: Wire) -> Any:
        wire.accept()
        while True:
            readable, writable, _ = select.select([wire.sock], [wire.sock], [], 0)
            if readable:
                break
            if not writable:
                server.reached.set()
            wire.send(block)
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script)
    ws = await connect(server.uri, compression=None, close_timeout=2)
    for _ in range(100):
        assert await ws.recv() == bytes(size)
    await soon(server.reached.is_set)  # all buffers are full
    with within(1.5):
        await ws.close()
    assert ws.close_code == 1000
    assert await server.wait_result() == ([], Close(1000))


async def test_tcp_left_open_after_the_closing_handshake(scripted: Scripted, connect: Connect) -> None:
    """Section 7.1.1: the server closes first; a client does not wait for that forever."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(close(1000))
        wire.read_to_end()
        return received

    server = scripted(script)
    ws = await connect(server.uri, close_timeout=0.3)
    with within(3):
        await ws.close()
    assert ws.close_code == 1000
    assert await server.wait_result() == ([], Close(1000))


@pytest.mark.wirespeed_only("websockets waits without a deadline until the application sends or closes")
async def test_tcp_left_open_after_the_server_closed(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close(1000))
        received = wire.read_until_close()
        wire.read_to_end()
        return received

    server = scripted(script)
    ws = await connect(server.uri, close_timeout=0.3)
    with within(3), pytest.raises(exceptions.ConnectionClosed):
        await asyncio.wait_for(ws.recv(), 2)
    with within(3):
        await ws.close()
    assert ws.close_code == 1000
    assert await server.wait_result() == ([], Close(1000))


# Lost


ENDINGS = {"end-of-stream": Wire.half_close, "reset": Wire.reset, "closed": Wire.close}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
async def test_lost_without_close_frame(scripted: Scripted, connect: Connect, end: Callable[[Wire], None]) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("last"))
        server.pause()
        end(wire)

    server = scripted(script)
    ws = await connect(server.uri)
    assert await ws.recv() == "last"
    server.release.set()
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert raised.value.rcvd is None
    assert raised.value.sent is None
    assert str(raised.value) == "no close frame received or sent"
    assert (ws.close_code, ws.close_reason) == (1006, "")
    await ws.close()


@pytest.mark.parametrize("cut", [1, 2, 3, 5], ids=lambda cut: f"after-{cut}-bytes")
async def test_lost_inside_a_frame(scripted: Scripted, connect: Connect, cut: int) -> None:
    server = scripted(lambda wire: wire.accept(then=text("whole") + text("x" * 200)[:cut]))
    ws = await connect(server.uri)
    assert await ws.recv() == "whole"
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert raised.value.rcvd is None
    assert raised.value.sent is None
    await ws.close()


async def test_lost_inside_a_fragmented_message(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: wire.accept(then=frame(TEXT, b"begun", fin=False)))
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.recv()
    await ws.close()


@pytest.mark.parametrize("end", [Wire.reset, Wire.close], ids=["reset", "closed"])
async def test_lost_instead_of_a_close_frame(scripted: Scripted, connect: Connect, end: Callable[[Wire], None]) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        end(wire)
        return received

    server = scripted(script)
    ws = await connect(server.uri)
    with within(5):
        await ws.close(1001)
    assert ws.close_code == 1006
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.send("x")
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == Close(1001)
    assert await server.wait_result() == ([], Close(1001))


async def test_lost_while_sending(scripted: Scripted, connect: Connect) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.reset()

    server = scripted(script)
    ws = await connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedError) as raised, within(8):
        while True:
            await ws.send(bytes(100_000))
    assert raised.value.rcvd is None
    assert ws.close_code == 1006
    await ws.close()


async def test_messages_before_the_loss_are_delivered(scripted: Scripted, connect: Connect) -> None:
    server = scripted(lambda wire: wire.accept(then=b"".join(text(str(number)) for number in range(500))))
    ws = await connect(server.uri)
    received = []
    with pytest.raises(exceptions.ConnectionClosedError):
        async for message in ws:
            received.append(message)
    assert received == [str(number) for number in range(500)]
    await ws.close()


async def test_aborted_by_a_real_server(server: WebSocketsServer, connect: Connect) -> None:
    ws = await connect(server.uri + "/abort")
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.recv()
    await ws.close()
