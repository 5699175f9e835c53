"""A server that misbehaves in each way of the tables of ``support.faults``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from support.checks import as_close, describe, exception_types, no_leaks, within
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
from support.subject import IS_WIRESPEED, connect, exceptions


def rows(table: list[Any]) -> list[Any]:
    """A table as parameters, each row named and marked."""
    return [
        pytest.param(
            row,
            id=row.name,
            marks=[pytest.mark.websockets_differs(row.differs)] if row.differs else [],
        )
        for row in table
    ]


# Opening handshake


@pytest.mark.parametrize("fault", rows(HANDSHAKE_FAULTS))
def test_invalid_handshake_is_refused(fault: HandshakeFault) -> None:
    with no_leaks(), within(8):
        with ScriptedServer(fault.answer) as server, pytest.raises(exception_types(fault.raises)) as raised:
            connect(server.uri, open_timeout=5, **fault.options)
        assert not isinstance(raised.value, TimeoutError)
        assert fault.says.lower() in describe(raised.value).lower()
        del raised


@pytest.mark.parametrize("oddity", rows(HANDSHAKE_ODDITIES))
def test_unusual_handshake_is_accepted(scripted: Scripted, oddity: HandshakeOddity) -> None:
    def script(wire: Wire) -> Any:
        wire.read_request()
        head = "\r\n".join([*oddity.lines, "", ""]).replace("{accept}", accept_key(wire.key))
        data = head.encode("latin-1") + oddity.then
        wire.send_in_pieces(data, oddity.pieces or len(data))
        wire.send(text("ready"))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, open_timeout=5, **oddity.options) as ws:
        assert [ws.recv(timeout=5) for _ in oddity.messages] == list(oddity.messages)
        assert ws.recv(timeout=5) == "ready"
    assert server.result == ([], Close(1000))


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


def check_failed(ws: Any, fault: FrameFault, server: ScriptedServer) -> None:
    """Checks that the connection failed as the row says, on the wire and for every call of the application."""
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    frames, on_the_wire = server.result
    assert frames == []
    assert on_the_wire is not None, "the client sent no close frame"
    assert on_the_wire.code in fault.codes
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == on_the_wire
    assert raised.value.rcvd_then_sent is None
    if IS_WIRESPEED:
        assert fault.says in describe(raised.value)
    for call in (lambda: ws.recv(timeout=5), lambda: ws.send("x"), ws.ping, ws.pong):
        with pytest.raises(exceptions.ConnectionClosedError) as again:
            call()
        assert as_close(again.value.sent) == on_the_wire
    assert ws.close_code == 1006
    assert ws.close_reason == ""
    ws.close()


@pytest.mark.parametrize("fault", rows(FRAME_FAULTS))
def test_protocol_error_fails_the_connection(scripted: Scripted, fault: FrameFault) -> None:
    server = scripted(send_fault(fault, 3))
    ws = connect(server.uri, **fault.options)
    assert [ws.recv(timeout=5) for _ in range(3)] == [GREETING] * 3
    check_failed(ws, fault, server)


# Long rows sent byte by byte take long and add no coverage.
@pytest.mark.parametrize("fault", rows([fault for fault in FRAME_FAULTS if len(fault.data) < 500]))
def test_protocol_error_sent_byte_by_byte(scripted: Scripted, fault: FrameFault) -> None:
    server = scripted(send_fault(fault, 1, piece=1))
    ws = connect(server.uri, **fault.options)
    assert ws.recv(timeout=5) == GREETING
    check_failed(ws, fault, server)


@pytest.mark.parametrize("fault", rows([fault for fault in FRAME_FAULTS if fault.name in ("opcode-3", "utf8-bad")]))
def test_reply_to_a_failing_close_is_not_processed(scripted: Scripted, fault: FrameFault) -> None:
    """RFC 6455 section 7.1.7: no processing of a responding close frame after failing the connection."""

    def script(wire: Wire) -> Any:
        wire.accept(then=fault.data)
        received = wire.read_until_close()
        wire.send(text("too late") + close(fault.codes[0]))
        return received

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == server.result[1]
    assert ws.close_code == 1006


def test_protocol_error_noticed_while_sending(scripted: Scripted) -> None:
    """A protocol error without a receiver ends in ConnectionClosedError from send, not in a hang."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("first") + b"\x83\x00")
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    assert ws.recv(timeout=5) == "first"
    with pytest.raises(exceptions.ConnectionClosedError), within(8):
        while True:
            ws.send(bytes(10_000))
            with contextlib.suppress(TimeoutError):
                ws.recv(timeout=0)
    assert server.result[1].code == 1002


# Valid but unusual


@pytest.mark.parametrize("pieces", [0, 1], ids=["at-once", "byte-by-byte"])
@pytest.mark.parametrize("oddity", rows(ODDITIES))
def test_unusual_frames_are_accepted(scripted: Scripted, oddity: Oddity, pieces: int) -> None:
    if pieces and len(oddity.data) > 2000:
        pieces = len(oddity.data) // 1000

    def script(wire: Wire) -> Any:
        wire.accept(*([oddity.extension] if oddity.extension else []))
        wire.send_in_pieces(oddity.data, pieces or len(oddity.data))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, **oddity.options) as ws:
        assert [ws.recv(timeout=5) for _ in oddity.messages] == list(oddity.messages)
    frames, on_the_wire = server.result
    assert frames == [Frame(PONG, payload) for payload in oddity.pongs]
    assert on_the_wire == Close(1000)
