"""A server that misbehaves in each way of the tables of ``support.faults``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.asyncio_tools import Run, one_loop
from support.checks import as_close, describe, exception_types, no_leaks, within
from support.connecting import Connect
from support.faults import (
    FRAME_FAULTS,
    GREETING,
    HANDSHAKE_FAULTS,
    HANDSHAKE_ODDITIES,
    ODDITIES,
    FrameFault,
    HandshakeFault,
    HandshakeOddity,
    Oddity,
)
from support.frames import PONG, Close, Frame, close, text
from support.scripted import Scripted, ScriptedServer, Wire, accept_key
from support.subject import IS_WIRESPEED, exceptions

SETTINGS = one_loop()


def rows(table: list[Any]) -> list[Any]:
    """A table as parameters, each row named and marked. ``tests/sync`` proves that websockets differs."""
    return [
        pytest.param(
            row,
            id=row.name,
            marks=[pytest.mark.wirespeed_only(row.differs)] if row.differs else [],
        )
        for row in table
    ]


# Opening handshake


@pytest.mark.parametrize("fault", rows(HANDSHAKE_FAULTS))
def test_invalid_handshake_is_refused(run: Run, connect: Connect, fault: HandshakeFault) -> None:
    async def main(uri: str) -> None:
        with pytest.raises(exception_types(fault.raises)) as raised:
            await connect(uri, open_timeout=5, **fault.options)
        assert not isinstance(raised.value, TimeoutError)
        assert fault.says.lower() in describe(raised.value).lower()

    with no_leaks(), within(8), ScriptedServer(fault.answer) as server:
        run(lambda: main(server.uri))


@pytest.mark.parametrize("oddity", rows(HANDSHAKE_ODDITIES))
async def test_unusual_handshake_is_accepted(scripted: Scripted, connect: Connect, oddity: HandshakeOddity) -> None:
    def script(wire: Wire) -> Any:
        wire.read_request()
        head = "\r\n".join([*oddity.lines, "", ""]).replace("{accept}", accept_key(wire.key))
        data = head.encode("latin-1") + oddity.then
        wire.send_in_pieces(data, oddity.pieces or len(data))
        wire.send(text("ready"))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, open_timeout=5, **oddity.options) as ws:
        assert [await ws.recv() for _ in oddity.messages] == list(oddity.messages)
        assert await ws.recv() == "ready"
    assert await server.wait_result() == ([], Close(1000))


# Frames


def send_fault(fault: FrameFault, pending_handshakes: int, piece: int = 0) -> Callable[[Wire], Any]:
    """A script that completes the handshake, misbehaves, and returns the bytes up to the client's close frame."""

    def script(wire: Wire) -> Any:
        data = text(GREETING) * pending_handshakes + fault.data
        headers = (fault.extension,) if fault.extension else ()
        if piece:
            wire.accept(*headers)
            wire.send_in_pieces(data, piece)
        else:
            wire.accept(*headers, then=data)
        return wire.read_until_close()

    return script


async def check_failed(ws: Any, fault: FrameFault, server: ScriptedServer) -> None:
    """Checks that the connection failed as the row says, on the wire and for every call of the application."""
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    frames, on_the_wire = server.result
    assert frames == []
    assert on_the_wire is not None, "the client sent no close frame"
    assert on_the_wire.code in fault.codes
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == on_the_wire
    assert raised.value.rcvd_then_sent is None
    if IS_WIRESPEED:
        assert fault.says in describe(raised.value)
    for call in (ws.recv, lambda: ws.send("x"), ws.ping, ws.pong):
        with pytest.raises(exceptions.ConnectionClosedError) as again:
            await call()
        assert as_close(again.value.sent) == on_the_wire
    assert ws.close_code == 1006
    assert ws.close_reason == ""
    await ws.close()


@pytest.mark.parametrize("fault", rows(FRAME_FAULTS))
async def test_protocol_error_fails_the_connection(scripted: Scripted, connect: Connect, fault: FrameFault) -> None:
    server = scripted(send_fault(fault, 3))
    ws = await connect(server.uri, **fault.options)
    assert [await ws.recv() for _ in range(3)] == [GREETING] * 3
    await check_failed(ws, fault, server)


# Long rows sent byte by byte take long and add no coverage.
@pytest.mark.parametrize("fault", rows([fault for fault in FRAME_FAULTS if len(fault.data) < 500]))
async def test_protocol_error_sent_byte_by_byte(scripted: Scripted, connect: Connect, fault: FrameFault) -> None:
    server = scripted(send_fault(fault, 1, piece=1))
    ws = await connect(server.uri, **fault.options)
    assert await ws.recv() == GREETING
    await check_failed(ws, fault, server)


FEW = [fault for fault in FRAME_FAULTS if fault.name in ("opcode-3", "message-too-big")]


@pytest.mark.parametrize("fault", rows(FEW))
async def test_reply_to_a_failing_close_is_not_processed(
    scripted: Scripted, connect: Connect, fault: FrameFault
) -> None:
    """RFC 6455 section 7.1.7: no processing of a responding close frame after failing the connection."""

    def script(wire: Wire) -> Any:
        wire.accept(then=fault.data)
        received = wire.read_until_close()
        wire.send(text("too late") + close(fault.codes[0]))
        return received

    server = scripted(script)
    ws = await connect(server.uri, **fault.options)
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        await ws.recv()
    assert raised.value.rcvd is None
    assert ws.close_code == 1006
    sent = as_close(raised.value.sent)
    assert (await server.wait_result())[1] == sent


@pytest.mark.parametrize("fault", rows(FEW))
async def test_protocol_error_without_a_receiver(scripted: Scripted, connect: Connect, fault: FrameFault) -> None:
    """The connection fails without any call of the application; a task that only sends gets an exception."""
    server = scripted(send_fault(fault, 1))
    ws = await connect(server.uri, **fault.options)
    with within(5):
        await ws.wait_closed()
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.send("x")
    assert await ws.recv() == GREETING
    with pytest.raises(exceptions.ConnectionClosedError):
        await ws.recv()
    assert (await server.wait_result())[1].code in fault.codes


@pytest.mark.parametrize("fault", rows(FEW))
async def test_protocol_error_while_sending(scripted: Scripted, connect: Connect, fault: FrameFault) -> None:
    server = scripted(send_fault(fault, 1))
    ws = await connect(server.uri, **fault.options)
    with within(8), pytest.raises(exceptions.ConnectionClosedError):
        while True:
            await ws.send(bytes(10_000))
            await asyncio.sleep(0)
    await ws.close()
    assert (await server.wait_result())[1].code in fault.codes


# Valid but unusual


@pytest.mark.parametrize("pieces", [0, 1], ids=["at-once", "byte-by-byte"])
@pytest.mark.parametrize("oddity", rows(ODDITIES))
async def test_unusual_frames_are_accepted(scripted: Scripted, connect: Connect, oddity: Oddity, pieces: int) -> None:
    if pieces and len(oddity.data) > 2000:
        pieces = len(oddity.data) // 1000

    def script(wire: Wire) -> Any:
        wire.accept(*([oddity.extension] if oddity.extension else []))
        wire.send_in_pieces(oddity.data, pieces or len(oddity.data))
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri, **oddity.options) as ws:
        assert [await ws.recv() for _ in oddity.messages] == list(oddity.messages)
    frames, on_the_wire = await server.wait_result()
    assert frames == [Frame(PONG, payload) for payload in oddity.pongs]
    assert on_the_wire == Close(1000)


@pytest.mark.wirespeed_only("websockets closes before the application has seen the message")
@pytest.mark.parametrize("when", ["with-response", "later"])
async def test_message_before_protocol_error_can_be_answered(scripted: Scripted, connect: Connect, when: str) -> None:
    """The protocol error closes the connection in its turn, after the messages sent before it."""
    frames = text("fine") + bytes([0b1010_0001, 0])

    def script(wire: Wire) -> Any:
        if when == "with-response":
            wire.accept(then=frames)
        else:
            wire.accept()
            server.pause()
            wire.send(frames)
        return wire.read_until_close()

    server = scripted(script)
    async with connect(server.uri) as ws:
        server.release.set()
        await ws.send(await ws.recv())
        with pytest.raises(exceptions.ConnectionClosedError):
            await ws.recv()
    received, closed = await server.wait_result()
    assert [frame.payload for frame in received] == [b"fine"]
    ended = as_close(closed)
    assert ended is not None
    assert ended.code == 1002
