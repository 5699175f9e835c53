"""The closing handshake, and connections that end without one."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.checks import as_close, no_leaks, within
from support.frames import BINARY, CONT, PONG, TEXT, Close, Frame, close, frame, ping, text
from support.scripted import Disconnected, Scripted, ScriptedServer, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions


def reply_to_close(wire: Wire) -> tuple[list[Frame], Close | None]:
    """Accepts, reads until the close frame, echoes it, ends."""
    wire.accept()
    frames, received = wire.read_until_close()
    if received is not None:
        wire.send(close() if received.code == 1005 else close(received.code, received.reason))
    return frames, received


# By the client


def test_close(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    ws = connect(server.uri)
    ws.close()
    assert server.result == ([], Close(1000))
    assert (ws.close_code, ws.close_reason) == (1000, "")
    assert ws.state.name == "CLOSED"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1000, "bye"), (1001, ""), (1003, "é" * 61), (1008, ""), (1011, "x" * 123), (3000, "library"), (4999, "mine")],
)
def test_close_with_code_and_reason(scripted: Scripted, code: int, reason: str) -> None:
    server = scripted(reply_to_close)
    ws = connect(server.uri)
    ws.close(code, reason)
    assert server.result == ([], Close(code, reason))
    assert (ws.close_code, ws.close_reason) == (code, reason)


def test_close_by_keyword(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    connect(server.uri).close(code=1001, reason="moving")
    assert server.result == ([], Close(1001, "moving"))


def test_close_is_idempotent(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    ws = connect(server.uri)
    ws.close(1001)
    ws.close(1000)
    assert ws.close_code == 1001
    assert server.result == ([], Close(1001))


@pytest.mark.parametrize("code", [0, 999, 1004, 1006, 1015, 2000, 5000, 70000, -1])
def test_close_with_bad_code(server: WebSocketsServer, code: int) -> None:
    with connect(server.uri) as ws:
        with pytest.raises((exceptions.ProtocolError, ValueError)):
            ws.close(code)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_close_with_long_reason(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        with pytest.raises((exceptions.ProtocolError, ValueError)):
            ws.close(1000, "x" * 124)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_context_manager_closes(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    with connect(server.uri) as ws:
        ws.send("x")
    assert server.result[1] == Close(1000)


def test_context_manager_closes_with_1011_after_an_exception(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    with pytest.raises(ZeroDivisionError), connect(server.uri):
        raise ZeroDivisionError
    assert server.result[1] == Close(1011)


def test_calls_after_close(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    ws.close()
    for call in (
        lambda: ws.recv(timeout=5),
        lambda: ws.recv(),
        lambda: ws.send("x"),
        ws.ping,
        ws.pong,
        lambda: ws.send(["a", "b"]),
    ):
        with pytest.raises(exceptions.ConnectionClosedOK) as raised:
            call()
        assert as_close(raised.value.sent) == as_close(raised.value.rcvd) == Close(1000)
        assert raised.value.rcvd_then_sent is False
    assert str(raised.value) == "sent 1000 (OK); then received 1000 (OK)"
    assert list(ws) == []


@pytest.mark.wirespeed_only("ours")
def test_more_calls_after_close(server: WebSocketsServer) -> None:
    ws = connect(server.uri)
    ws.close()
    for call in (lambda: ws.recv_many(1), ws.recv_nowait, lambda: ws.send_many(["a"])):
        with pytest.raises(exceptions.ConnectionClosedOK):
            call()


def test_messages_received_before_close_are_delivered_after_it(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("first") + text("second"))
        wire.read_until_close()
        wire.send(close(1000))

    ws = connect(scripted(script).uri)
    assert ws.recv(timeout=5) == "first"
    ws.close()
    assert ws.recv(timeout=5) == "second"
    with pytest.raises(exceptions.ConnectionClosedOK):
        ws.recv(timeout=5)


def test_message_crossing_the_close_frame(scripted: Scripted) -> None:
    """Messages that the server sent before it saw our close frame do not disturb the closing handshake."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(text("crossing") + ping(b"crossing") + close(1000))
        return received

    server = scripted(script)
    ws = connect(server.uri)
    ws.close()
    assert ws.close_code == 1000
    assert server.result == ([], Close(1000))


# By the server


@pytest.mark.parametrize(
    ("code", "reason", "ok"),
    [
        (1000, "", True),
        (1000, "done", True),
        (1001, "away", True),
        (1002, "", False),
        (1008, "no", False),
        (1011, "", False),
        (1012, "", False),
        (1013, "", False),
        (1014, "", False),
        (3000, "", False),
        (4000, "€" * 41, False),
        (4999, "", False),
    ],
)
def test_closed_by_the_server(scripted: Scripted, code: int, reason: str, ok: bool) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=text("last") + close(code, reason))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    assert ws.recv(timeout=5) == "last"
    with pytest.raises(exceptions.ConnectionClosedOK if ok else exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert as_close(raised.value.rcvd) == as_close(raised.value.sent) == Close(code, reason)
    assert raised.value.rcvd_then_sent is True
    assert (ws.close_code, ws.close_reason) == (code, reason)
    assert server.result == ([], Close(code, reason))
    ws.close()


def test_closed_by_the_server_without_code(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close())
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is not None
    assert raised.value.rcvd.code == 1005
    assert (ws.close_code, ws.close_reason) == (1005, "")
    assert server.result == ([], Close(1005)), "RFC 6455 section 5.5.1: the reply echoes, so it is empty too"
    ws.close()


@pytest.mark.parametrize("code", [1000, 1011, 4000])
def test_closed_by_a_real_server(server: WebSocketsServer, code: int) -> None:
    ws = connect(server.uri + f"/close?code={code}&reason=because")
    with pytest.raises(exceptions.ConnectionClosed) as raised:
        ws.recv(timeout=5)
    assert as_close(raised.value.rcvd) == Close(code, "because")
    ws.close()


def test_data_after_the_close_frame_is_ignored(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close(1000) + text("too late") + ping(b"too late") + b"\xff\xff")
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        ws.recv(timeout=5)
    assert server.result == ([], Close(1000))
    ws.close()


@pytest.mark.websockets_differs("treats it as a protocol error: Autobahn 7.1.5")
def test_close_frame_inside_a_fragmented_message(scripted: Scripted) -> None:
    """Section 5.4: a control frame may be injected in the middle of a fragmented message."""

    def script(wire: Wire) -> Any:
        wire.accept(then=text("begun", fin=False) + close(1000) + frame(CONT, b"ended"))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        ws.recv(timeout=5)
    assert server.result == ([], Close(1000))
    ws.close()


def test_send_after_the_server_closed(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close(1001, "restart"))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        ws.recv(timeout=5)
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        ws.send("x")
    assert as_close(raised.value.rcvd) == Close(1001, "restart")
    assert server.result[0] == []
    ws.close()


def test_send_notices_the_close_frame_of_the_server(scripted: Scripted) -> None:
    """An application that only sends gets an exception with the server's reason."""

    def script(wire: Wire) -> None:
        wire.accept(then=close(1013, "try again later"))
        wire.read_until_close()

    ws = connect(scripted(script).uri, close_timeout=5)
    with pytest.raises(exceptions.ConnectionClosedError) as raised, within(8):
        while True:
            ws.send(bytes(1000))
    assert as_close(raised.value.rcvd) == Close(1013, "try again later")
    ws.close()


def test_both_close_at_once(scripted: Scripted) -> None:
    """The server's close frame is on its way when the client sends its own."""

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.read_frame()
        wire.send(close(1001, "server"))
        server.reached.set()
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    ws.send("x")
    server.wait_reached()
    ws.close(1000, "client")
    assert ws.state.name == "CLOSED"
    # The first frame decides; each order is a clean close.
    with pytest.raises(exceptions.ConnectionClosedOK) as raised:
        ws.recv(timeout=5)
    assert as_close(raised.value.rcvd) == Close(1001, "server")
    assert ws.close_code == 1001
    assert server.result[1] in (Close(1000, "client"), Close(1001, "server"))
    assert as_close(raised.value.sent) == server.result[1]


def test_pings_are_answered_before_the_close(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=ping(b"a") + ping(b"b") + close(1000))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedOK):
        ws.recv(timeout=5)
    assert server.result == ([Frame(PONG, b"a"), Frame(PONG, b"b")], Close(1000))
    ws.close()


def test_send_waits_for_the_end_of_a_close_in_another_thread(scripted: Scripted) -> None:
    """send raises the reason of the end, after the end."""
    answer = threading.Event()

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_until_close()
        assert answer.wait(8)
        wire.send(close(1000))

    server = scripted(script)
    ws = connect(server.uri)
    closing = threading.Thread(target=ws.close)
    closing.start()
    deadline = time.monotonic() + 5
    while ws.state.name == "OPEN":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    raised: list[BaseException] = []

    def send() -> None:
        try:
            ws.send("too late")
        except exceptions.ConnectionClosed as exc:
            raised.append(exc)

    sending = threading.Thread(target=send)
    sending.start()
    sending.join(0.1)
    assert sending.is_alive()
    answer.set()
    for thread in (sending, closing):
        thread.join(8)
        assert not thread.is_alive()
    assert [type(exc) for exc in raised] == [exceptions.ConnectionClosedOK]


def test_sender_without_receiver_notices_the_close(scripted: Scripted) -> None:
    """Without a receiving call, and before the kernel's buffer is full: the close frame and pings are answered."""

    def script(wire: Wire) -> tuple[list[int], Close | None]:
        wire.accept()
        wire.send(ping(b"are you there"))
        opcodes = []
        while (first := wire.read_frame()).opcode != PONG:
            opcodes.append(first.opcode)
        wire.send(close(4000, "enough"))
        frames, received = wire.read_until_close()
        return opcodes + [frame.opcode for frame in frames], received

    server = scripted(script)
    ws = connect(server.uri)
    deadline = time.monotonic() + 8
    sent = 0
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        while time.monotonic() < deadline:
            ws.send("tick")
            sent += 1
            time.sleep(0.002)
    assert as_close(raised.value.rcvd) == Close(4000, "enough")
    opcodes, received = server.result
    assert received == Close(4000, "enough")
    assert len(opcodes) == sent
    ws.close()


# Peers that break the rules of closing


def test_no_reply_to_close(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.read_to_end()
        return received

    with no_leaks():
        with ScriptedServer(script) as server:
            ws = connect(server.uri, close_timeout=0.3)
            with within(3, at_least=0.3):
                ws.close(1000, "bye")
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            ws.recv(timeout=5)
        assert raised.value.rcvd is None
        assert as_close(raised.value.sent) == Close(1000, "bye")
        assert ws.close_code == 1006
        del ws, raised


def test_no_reply_to_close_but_data(scripted: Scripted) -> None:
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
    ws = connect(server.uri, close_timeout=0.3)
    with within(3, at_least=0.3):
        ws.close()
    assert ws.close_code == 1006


@pytest.mark.wirespeed_only("websockets stops reading when its queue is full, so close waits for its timeout")
@pytest.mark.parametrize("size", [10, 64, 100_000])
def test_close_under_a_flood(scripted: Scripted, size: int) -> None:
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
    ws = connect(server.uri, compression=None, close_timeout=2)
    for _ in range(100):
        assert ws.recv(timeout=5) == bytes(size)
    server.wait_reached()  # all buffers are full
    with within(1.5):
        ws.close()
    assert ws.close_code == 1000
    assert server.result == ([], Close(1000))


def test_tcp_left_open_after_the_closing_handshake(scripted: Scripted) -> None:
    """Section 7.1.1: the server closes first; a client does not wait for that forever."""

    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(close(1000))
        wire.read_to_end()
        return received

    server = scripted(script)
    ws = connect(server.uri, close_timeout=0.3)
    with within(3):
        ws.close()
    assert ws.close_code == 1000
    assert server.result == ([], Close(1000))


@pytest.mark.websockets_differs("waits without a deadline until the application sends or closes")
def test_tcp_left_open_after_the_server_closed(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=close(1000))
        received = wire.read_until_close()
        wire.read_to_end()
        return received

    server = scripted(script)
    ws = connect(server.uri, close_timeout=0.3)
    with within(3), pytest.raises(exceptions.ConnectionClosed):
        ws.recv(timeout=2)
    with within(3):
        ws.close()
    assert ws.close_code == 1000
    assert server.result == ([], Close(1000))


def test_close_without_close_timeout(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    ws = connect(server.uri, close_timeout=None)
    with within(5):
        ws.close()
    assert ws.close_code == 1000


ENDINGS = {"end-of-stream": Wire.half_close, "reset": Wire.reset, "closed": Wire.close}


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
def test_lost_without_close_frame(scripted: Scripted, end: Callable[[Wire], None]) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("last"))
        server.pause()
        end(wire)

    server = scripted(script)
    ws = connect(server.uri)
    assert ws.recv(timeout=5) == "last"
    server.release.set()
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is None
    assert raised.value.sent is None
    assert str(raised.value) == "no close frame received or sent"
    assert (ws.close_code, ws.close_reason) == (1006, "")
    ws.close()


@pytest.mark.parametrize("cut", [1, 2, 3, 5], ids=lambda cut: f"after-{cut}-bytes")
def test_lost_inside_a_frame(scripted: Scripted, cut: int) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=text("whole") + text("x" * 200)[:cut])

    ws = connect(scripted(script).uri)
    assert ws.recv(timeout=5) == "whole"
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert raised.value.rcvd is None
    assert raised.value.sent is None
    ws.close()


def test_lost_inside_a_fragmented_message(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=frame(TEXT, b"begun", fin=False))

    ws = connect(scripted(script).uri)
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=5)
    ws.close()


@pytest.mark.parametrize("end", [Wire.reset, Wire.close], ids=["reset", "closed"])
def test_lost_instead_of_a_close_frame(scripted: Scripted, end: Callable[[Wire], None]) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        end(wire)
        return received

    server = scripted(script)
    ws = connect(server.uri)
    with within(5):
        ws.close(1001)
    assert ws.close_code == 1006
    assert server.result == ([], Close(1001))
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.send("x")
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == Close(1001)


def test_lost_while_sending(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.reset()

    ws = connect(scripted(script).uri)
    with pytest.raises(exceptions.ConnectionClosedError) as raised, within(8):
        while True:
            ws.send(bytes(100_000))
    assert raised.value.rcvd is None
    assert ws.close_code == 1006
    ws.close()


def test_messages_before_the_loss_are_delivered(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept(then=b"".join(text(str(number)) for number in range(500)))

    ws = connect(scripted(script).uri)
    received = []
    with pytest.raises(exceptions.ConnectionClosedError):
        for message in ws:
            received.append(message)
    assert received == [str(number) for number in range(500)]
    ws.close()


def test_aborted_by_a_real_server(server: WebSocketsServer) -> None:
    ws = connect(server.uri + "/abort")
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=5)
    ws.close()


# Other ways to end


@pytest.mark.wirespeed_only("abort is ours")
def test_abort(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri, close_timeout=60)
    with within(3):
        ws.abort()
    assert ws.state.name == "CLOSED"
    assert server.result == ([], None), "no close frame"
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=5)
    ws.abort()
    ws.close()


@pytest.mark.wirespeed_only("abort is ours")
def test_abort_ends_a_blocked_recv(scripted: Scripted) -> None:
    server = scripted(reply_to_close)
    ws = connect(server.uri)
    timer = threading.Timer(0.1, ws.abort)
    timer.start()
    with within(5), pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=10)
    timer.join()
    ws.close()


def test_socket_is_closed(scripted: Scripted) -> None:
    """The descriptor is closed when close returns, not at a later collection."""
    with no_leaks():
        with ScriptedServer(reply_to_close) as server:
            ws = connect(server.uri)
            ws.close()
        assert ws.state.name == "CLOSED"


def test_sending_thread_finds_protocol_error_of_flooding_peer(scripted: Scripted) -> None:
    """The close frame with the reason is not lost to a reset, though more data is there than one read takes."""

    def script(wire: Wire) -> Any:
        wire.accept()
        wire.read_frame()
        # RFC 6455 5.2: reserved bits.
        wire.send(b"\xf2\x00" + bytes(8_000_000))
        _, end = wire.read_until_close()
        wire.half_close()
        return end, wire.read_to_end()

    server = scripted(script)
    ws = connect(server.uri, compression=None, ping_interval=None)
    with within(20), pytest.raises(exceptions.ConnectionClosedError) as info:
        while True:
            ws.send("x" * 1000)
            time.sleep(0.0005)
    assert info.value.sent is not None
    assert info.value.sent.code == 1002
    end, rest = server.result
    assert end is not None
    assert (end.code, rest) == (1002, b"")
