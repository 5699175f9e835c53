"""``recv(timeout=)``: exact, and it loses nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from support.checks import within
from support.faults import DEFLATE
from support.frames import CONT, PONG, binary, deflate, frame, ping, text
from support.scripted import Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions


@pytest.mark.parametrize("timeout", [0.05, 0.2, 0.5])
def test_timeout_is_exact(server: WebSocketsServer, timeout: float) -> None:
    with connect(server.uri) as ws, within(timeout + 0.25, at_least=timeout), pytest.raises(TimeoutError):
        ws.recv(timeout=timeout)


@pytest.mark.parametrize("timeout", [0, 0.0, -1, -0.5])
def test_no_time(server: WebSocketsServer, timeout: float) -> None:
    with connect(server.uri) as ws:
        with within(0.25), pytest.raises(TimeoutError):
            ws.recv(timeout=timeout)
        ws.send("hello")
        assert ws.recv(timeout=5) == "hello"


def test_no_time_finds_what_has_arrived(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("a") + text("b") + text("c"))
        wire.read_until_close()

    with connect(scripted(script).uri) as ws:
        assert ws.recv(timeout=5) == "a"
        assert ws.recv(timeout=0) == "b"
        assert ws.recv(timeout=-1) == "c"
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0)


def test_long_timeout(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        ws.send("hello")
        assert ws.recv(timeout=1_000_000) == "hello"


def test_timeout_by_position(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws, pytest.raises(TimeoutError):
        ws.recv(0.05)


def in_steps(scripted: Scripted, pieces: list[bytes], *headers: str) -> ScriptedServer:
    """A server that sends the next piece each time the client sends a message."""

    def script(wire: Wire) -> Any:
        wire.accept(*headers)
        for piece in pieces:
            while wire.read_frame().opcode == PONG:
                pass
            wire.send(piece)
        return wire.read_until_close()

    return scripted(script)


MESSAGE = "é" * 300
WHOLE = text(MESSAGE)
DEFLATED = deflate(MESSAGE.encode())

PIECES = {
    "in-the-header": [WHOLE[:1], WHOLE[1:3], WHOLE[3:]],
    "in-the-payload": [WHOLE[:10], WHOLE[10:101], WHOLE[101:]],
    "in-a-character": [WHOLE[:5], WHOLE[5:]],
    "between-fragments": [text(MESSAGE[:100], fin=False), frame(CONT, MESSAGE[100:].encode())],
    "in-fragments": [
        text(MESSAGE[:100], fin=False)[:50],
        text(MESSAGE[:100], fin=False)[50:] + frame(CONT, MESSAGE[100:].encode())[:3],
        frame(CONT, MESSAGE[100:].encode())[3:],
    ],
    "between-fragments-with-pings": [
        text(MESSAGE[:100], fin=False) + ping(b"1"),
        ping(b"2"),
        frame(CONT, MESSAGE[100:].encode()),
    ],
    "one-byte-missing": [WHOLE[:-1], WHOLE[-1:]],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_message_in_pieces_across_timeouts(scripted: Scripted, pieces: list[bytes]) -> None:
    """The message still arrives whole when a receive times out after each piece."""
    server = in_steps(scripted, pieces)
    with connect(server.uri, compression=None) as ws:
        for _ in pieces[:-1]:
            ws.send("more")
            with pytest.raises(TimeoutError):
                ws.recv(timeout=0.1)
        ws.send("more")
        assert ws.recv(timeout=5) == MESSAGE
    assert server.result[1] is not None


def test_compressed_message_in_pieces_across_timeouts(scripted: Scripted) -> None:
    data = text(DEFLATED, rsv=4)
    server = in_steps(scripted, [data[:3], data[3:5], data[5:]], DEFLATE)
    with connect(server.uri) as ws:
        for _ in range(2):
            ws.send("more")
            with pytest.raises(TimeoutError):
                ws.recv(timeout=0.1)
        ws.send("more")
        assert ws.recv(timeout=5) == MESSAGE


def test_big_message_in_pieces_across_timeouts(scripted: Scripted) -> None:
    """Large enough that the rest is read directly into the final object."""
    message = bytes(range(256)) * 4096  # 1 MiB
    data = binary(message)
    pieces = [data[:100], data[100:300_000], data[300_000:300_001], data[300_001:]]
    server = in_steps(scripted, pieces)
    with connect(server.uri, compression=None) as ws:
        for _ in pieces[:-1]:
            ws.send("more")
            with pytest.raises(TimeoutError):
                ws.recv(timeout=0.1)
        ws.send("more")
        assert ws.recv(timeout=5) == message


def test_byte_by_byte_with_tiny_timeouts(scripted: Scripted) -> None:
    data = b"".join(text(str(number) * number) for number in range(1, 40))

    def script(wire: Wire) -> None:
        wire.accept()
        wire.send_in_pieces(data)
        wire.read_until_close()

    received: list[str | bytes] = []
    with connect(scripted(script).uri) as ws, within(20):
        while len(received) < 39:
            with contextlib.suppress(TimeoutError):
                received.append(ws.recv(timeout=0.0001))
    assert received == [str(number) * number for number in range(1, 40)]


def test_control_frames_do_not_extend_the_timeout(scripted: Scripted) -> None:
    """Pings and partial messages keep arriving, more often than the timeout is long."""

    def script(wire: Wire) -> None:
        wire.accept(then=text("begun", fin=False))
        while not server.release.wait(0.03):
            wire.send(ping() + frame(CONT, b"x", fin=False))
        wire.send(frame(CONT, b"end"))
        wire.read_until_close()

    server = scripted(script)
    with connect(server.uri) as ws:
        with within(0.8, at_least=0.3), pytest.raises(TimeoutError):
            ws.recv(timeout=0.3)
        server.release.set()
        message = str(ws.recv(timeout=5))
        assert message.startswith("begun")
        assert message.endswith("end")


def test_timeout_then_close_by_the_server(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(TimeoutError):
        ws.recv(timeout=0.05)
    server.release.set()
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=5)
    ws.close()


def test_timeout_is_not_a_closed_connection(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(TimeoutError) as raised:
            ws.recv(timeout=0.01)
        assert not isinstance(raised.value, exceptions.WebSocketException)
        assert ws.state.name == "OPEN"
        assert ws.close_code is None
