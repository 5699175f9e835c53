"""Pings and pongs, by the application and by the connection itself."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.checks import as_close, pong_arrives, within
from support.frames import BINARY, CLOSE, PING, PONG, TEXT, Close, Frame, close, frame, ping, pong, text
from support.load_scaling import load_scaled
from support.pace import ENOUGH, check_pace, pace
from support.scripted import Scripted, Wire
from support.servers import WebSocketsServer
from support.slow import read_slowly, send_slowly
from support.subject import connect, exceptions


def answering(wire: Wire) -> list[Frame]:
    """Accepts, answers pings and close, returns the other frames and the pings."""
    wire.accept()
    frames: list[Frame] = []
    while True:
        received = wire.read_frame()
        if received.opcode == CLOSE:
            wire.send(frame(CLOSE, received.payload))
            return frames
        frames.append(received)
        if received.opcode == PING:
            wire.send(pong(received.payload))


def silent(wire: Wire) -> tuple[list[Frame], Close | None]:
    """Accepts and never answers."""
    wire.accept()
    return wire.read_until_close()


# Pings of the server


def test_pings_are_answered_during_recv(server: WebSocketsServer) -> None:
    with connect(server.uri + "/ping?data=spam") as ws:
        assert ws.recv(timeout=5) == "pong spam"


def test_pings_are_answered_during_recv_without_messages(scripted: Scripted) -> None:
    """recv does not return for a ping, and answers it immediately."""

    def script(wire: Wire) -> list[Frame]:
        wire.accept()
        frames = []
        for number in range(5):
            wire.send(ping(b"%d" % number))
            frames.append(wire.read_frame())
        wire.send(text("done"))
        wire.read_until_close()
        return frames

    server = scripted(script)
    with connect(server.uri) as ws:
        assert ws.recv(timeout=5) == "done"
    assert server.result == [Frame(PONG, b"%d" % number) for number in range(5)]


def test_pings_are_answered_while_a_message_arrives(scripted: Scripted) -> None:
    def script(wire: Wire) -> Frame:
        wire.accept(then=text("a", fin=False) + ping(b"inside"))
        answer = wire.read_frame()
        wire.send(frame(0, b"b"))
        wire.read_until_close()
        return answer

    server = scripted(script)
    with connect(server.uri) as ws:
        assert ws.recv(timeout=5) == "ab"
    assert server.result == Frame(PONG, b"inside")


def test_pings_are_answered_while_waiting_for_a_pong(scripted: Scripted) -> None:
    def script(wire: Wire) -> Frame:
        wire.accept()
        mine = wire.read_frame()
        wire.send(ping(b"yours first"))
        answer = wire.read_frame()
        wire.send(pong(mine.payload))
        wire.read_until_close()
        return answer

    server = scripted(script)
    with connect(server.uri) as ws:
        assert pong_arrives(ws.ping())
    assert server.result == Frame(PONG, b"yours first")


# Pings of the application


def test_ping(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        assert ws.latency == 0
        assert pong_arrives(ws.ping())
        assert 0 < ws.latency < load_scaled(5)


@pytest.mark.parametrize(
    ("data", "payload"),
    [("é", "é".encode()), (b"\x00\xff", b"\x00\xff"), (bytearray(b"x"), b"x"), ("", b""), (b"x" * 125, b"x" * 125)],
)
def test_ping_data(scripted: Scripted, data: Any, payload: bytes) -> None:
    server = scripted(answering)
    with connect(server.uri) as ws:
        assert pong_arrives(ws.ping(data))
    assert server.result == [Frame(PING, payload)]


@pytest.mark.parametrize("timeout", [None, 10], ids=["for-ever", "timeout"])
def test_wait_returns_when_the_pong_arrives(server: WebSocketsServer, timeout: float | None) -> None:
    with connect(server.uri) as ws:
        for _ in range(3):
            waiter = ws.ping()
            with within(1):
                assert waiter.wait(timeout)


def test_wait_times_out(scripted: Scripted) -> None:
    with connect(scripted(silent).uri, close_timeout=0.1) as ws:
        waiter = ws.ping()
        with within(0.6, at_least=0.2):
            assert not pong_arrives(waiter, 0.2)
        assert ws.latency == 0


def test_ping_data_by_default_differs(scripted: Scripted) -> None:
    server = scripted(answering)
    with connect(server.uri) as ws:
        for _ in range(5):
            assert pong_arrives(ws.ping())
    assert len({frame.payload for frame in server.result}) == 5


@pytest.mark.parametrize("data", [1, None, {}, ["a"]], ids=repr)
def test_pong_wrong_type(server: WebSocketsServer, data: Any) -> None:
    with connect(server.uri) as ws:
        with pytest.raises(TypeError):
            ws.pong(data)
        if data is not None:
            with pytest.raises(TypeError):
                ws.ping(data)


@pytest.mark.parametrize("data", [b"x" * 126, "é" * 63], ids=["bytes", "str"])
def test_ping_too_long(server: WebSocketsServer, data: Any) -> None:
    with connect(server.uri) as ws:
        for call in (ws.ping, ws.pong):
            with pytest.raises((exceptions.ProtocolError, ValueError)):
                call(data)
        ws.send("still open")
        assert ws.recv(timeout=5) == "still open"


def test_ping_twice_with_the_same_data(scripted: Scripted) -> None:
    with connect(scripted(silent).uri, close_timeout=0.1) as ws:
        ws.ping("x")
        with pytest.raises(exceptions.ConcurrencyError):
            ws.ping("x")


def test_ping_again_after_the_pong(server: WebSocketsServer) -> None:
    with connect(server.uri) as ws:
        assert pong_arrives(ws.ping("x"))
        assert pong_arrives(ws.ping("x"))


def test_pong_acknowledges_earlier_pings(scripted: Scripted) -> None:
    """RFC 6455 section 5.5.3: a peer may answer only the most recent ping."""

    def script(wire: Wire) -> None:
        wire.accept()
        last = [wire.read_frame() for _ in range(3)][-1]
        wire.send(pong(last.payload))
        wire.read_until_close()

    with connect(scripted(script).uri) as ws:
        waiters = [ws.ping() for _ in range(3)]
        assert all(pong_arrives(waiter) for waiter in waiters)


def test_unsolicited_pong_acknowledges_nothing(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()
        wire.send(pong(b"something else"))
        wire.read_until_close()

    with connect(scripted(script).uri, close_timeout=0.1) as ws:
        waiter = ws.ping("mine")
        with within(1, at_least=0.1):
            assert not pong_arrives(waiter, 0.1)


def test_waiting_for_a_pong_loses_no_message(scripted: Scripted) -> None:
    def script(wire: Wire) -> None:
        wire.accept()
        mine = wire.read_frame()
        wire.send(text("a") + text("b") + pong(mine.payload) + text("c"))
        wire.read_until_close()

    with connect(scripted(script).uri) as ws:
        assert pong_arrives(ws.ping())
        assert [ws.recv(timeout=5) for _ in range(3)] == ["a", "b", "c"]


def test_waiting_for_a_pong_of_a_lost_connection(scripted: Scripted) -> None:
    """The wait ends with an exception or a false result."""

    def script(wire: Wire) -> None:
        wire.accept()
        wire.read_frame()

    ws = connect(scripted(script).uri)
    waiter = ws.ping()
    with within(3), contextlib.suppress(exceptions.ConnectionClosed):
        assert not pong_arrives(waiter, 2)
    ws.close()


@pytest.mark.parametrize(("data", "payload"), [(None, b""), ("é", "é".encode()), (b"x", b"x")])
def test_pong(scripted: Scripted, data: Any, payload: bytes) -> None:
    server = scripted(silent)
    with connect(server.uri, close_timeout=0.1) as ws:
        ws.pong() if data is None else ws.pong(data)
    assert server.result[0] == [Frame(PONG, payload)]


# Keepalive


def test_keepalive_pings_while_receiving(scripted: Scripted) -> None:
    server = scripted(pace(0.1))
    with connect(server.uri, ping_interval=0.1, ping_timeout=5) as ws:
        assert ws.recv() == ENOUGH
        assert ws.latency > 0
    check_pace(server.result, 0.1)


def test_keepalive_is_in_time_in_a_receive_without_timeout(scripted: Scripted) -> None:
    def script(wire: Wire) -> float:
        wire.accept()
        start = time.monotonic()
        received = wire.read_frame()
        took = time.monotonic() - start
        wire.send(pong(received.payload) + text("got it"))
        wire.read_until_close()
        return took

    server = scripted(script)
    with connect(server.uri, ping_interval=0.3, ping_timeout=5) as ws:
        assert ws.recv() == "got it"
    assert 0.28 < server.result < load_scaled(3)


@pytest.mark.parametrize(
    "receive",
    [lambda ws: ws.recv(), lambda ws: ws.recv(timeout=10), lambda ws: list(ws)],
    ids=["recv", "timeout", "iteration"],
)
def test_keepalive_timeout(scripted: Scripted, receive: Callable[[Any], Any]) -> None:
    server = scripted(silent)
    ws = connect(server.uri, ping_interval=0.1, ping_timeout=0.2, close_timeout=0.5)
    with within(3, at_least=0.25), pytest.raises(exceptions.ConnectionClosedError) as raised:
        receive(ws)
    assert raised.value.rcvd is None
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")
    frames, on_the_wire = server.result
    assert [frame.opcode for frame in frames] == [PING]
    assert on_the_wire == Close(1011, "keepalive ping timeout")
    assert ws.close_code == 1006
    ws.close()


def test_keepalive_timeout_with_receives_that_time_out(scripted: Scripted) -> None:
    """A polling application gets the exception as well."""
    server = scripted(silent)
    ws = connect(server.uri, ping_interval=0.1, ping_timeout=0.2, close_timeout=0.5)
    with within(3), pytest.raises(exceptions.ConnectionClosedError) as raised:
        while True:
            with contextlib.suppress(TimeoutError):
                ws.recv(timeout=0.02)
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")
    ws.close()


@pytest.mark.wirespeed_only("websockets has neither recv_nowait nor busy_poll, and reads in a thread of its own")
@pytest.mark.parametrize(
    ("receive", "work"),
    [
        (lambda ws: ws.recv_nowait(), 0.016),
        (lambda ws: ws.recv(timeout=0), 0.016),
        (lambda ws: ws.recv(timeout=0.005), 0.05),
        (lambda ws: ws.recv(timeout=10, busy_poll=10), 0),
    ],
    ids=["recv_nowait", "no-timeout", "short-timeout", "busy_poll"],
)
def test_keepalive_timeout_of_a_polling_application(
    scripted: Scripted, receive: Callable[[Any], Any], work: float
) -> None:
    """The application never waits, or does so without sleeping: the time without data counts nevertheless."""
    server = scripted(silent)
    ws = connect(server.uri, ping_interval=0.1, ping_timeout=0.3, close_timeout=0.3)
    with within(3, at_least=0.35), pytest.raises(exceptions.ConnectionClosedError) as raised:
        while True:
            with contextlib.suppress(TimeoutError, BlockingIOError):
                receive(ws)
            time.sleep(work)
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")
    ws.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no interval timers")
def test_keepalive_timeout_while_signals_come(scripted: Scripted) -> None:
    """Signals come more often than the timeout."""
    server = scripted(silent)
    ws = connect(server.uri, ping_interval=0.1, ping_timeout=0.3, close_timeout=0.3)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
    try:
        with within(3, at_least=0.35), pytest.raises(exceptions.ConnectionClosedError) as raised:
            ws.recv(timeout=10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")
    ws.close()


@pytest.mark.wirespeed_only("websockets counts pongs only")
def test_a_large_message_that_arrives_slowly_keeps_the_connection_alive(scripted: Scripted) -> None:
    """No pong fits inside a frame."""
    server = scripted(send_slowly(100_000, 2.5))
    with connect(server.uri, ping_interval=0.4, ping_timeout=0.6, close_timeout=0.2) as ws:
        assert len(ws.recv()) == 100_000


@pytest.mark.wirespeed_only("websockets counts pongs only")
def test_peer_that_stops_inside_a_large_message_times_out(scripted: Scripted) -> None:
    server = scripted(send_slowly(100_000, 2.5, stop_at=0.5))
    ws = connect(server.uri, ping_interval=0.4, ping_timeout=0.6, close_timeout=0.2)
    with within(5, at_least=1.2), pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv()
    assert as_close(raised.value.sent) == Close(1011, "keepalive ping timeout")


@pytest.mark.wirespeed_only("websockets counts pongs only")
def test_a_peer_that_reads_slowly_is_alive(scripted: Scripted) -> None:
    """A send waits for room, and a ping waits behind messages in the kernel's buffer."""
    server = scripted(read_slowly(20_000, 0.05, 3), receive_buffer=16_384)
    with connect(server.uri, ping_interval=0.4, ping_timeout=0.6) as ws:
        for _ in range(20):
            ws.send(bytes(200_000))
    frames, closed = server.result
    assert sum(len(frame.payload) for frame in frames if frame.opcode == BINARY) == 20 * 200_000
    assert closed == Close(1000)


def test_late_pong_in_time(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        first = wire.read_frame()
        server.release.wait(0.3)
        wire.send(pong(first.payload))
        wire.read_frame()
        wire.send(text("alive"))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, ping_interval=0.1, ping_timeout=5) as ws:
        assert ws.recv(timeout=8) == "alive"
        assert ws.latency >= 0.29


def test_no_ping_timeout(scripted: Scripted) -> None:
    """Pings are sent, and a peer that never answers is not closed."""

    def script(wire: Wire) -> Any:
        wire.accept()
        assert [wire.read_frame().opcode for _ in range(3)] == [PING] * 3
        wire.send(text("enough"))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, ping_interval=0.05, ping_timeout=None, close_timeout=0.1) as ws:
        assert ws.recv(timeout=20) == "enough"
        ws.send("still open")
    frames, on_the_wire = server.result
    assert next(frame for frame in frames if frame.opcode == TEXT).payload == b"still open"
    assert on_the_wire == Close(1000)


def test_no_keepalive(scripted: Scripted) -> None:
    server = scripted(silent)
    options: dict[str, Any] = {"ping_interval": None, "ping_timeout": 0.05, "close_timeout": 0.1}
    with connect(server.uri, **options) as ws, pytest.raises(TimeoutError):
        ws.recv(timeout=0.2)
    assert server.result == ([], Close(1000))


@pytest.mark.wirespeed_only("websockets reads in a thread of its own")
def test_time_without_receiving_does_not_fail_keepalive(scripted: Scripted) -> None:
    """The pong is waiting in the socket when the application receives again."""

    def script(wire: Wire) -> Any:
        wire.accept()
        first = wire.read_frame()
        wire.send(pong(first.payload))
        server.pause()
        wire.send(text("alive"))
        return wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, ping_interval=0.1, ping_timeout=0.2) as ws:
        # Long enough to send the ping, too short to fail.
        with pytest.raises(TimeoutError):
            ws.recv(timeout=0.15)
        server.wait_reached()
        time.sleep(0.5)  # an application that computes: it does not wait
        server.release.set()
        assert ws.recv(timeout=5) == "alive"


@pytest.mark.wirespeed_only("websockets reads in a thread of its own")
def test_slow_receiving_repeatedly_does_not_fail_keepalive(scripted: Scripted) -> None:
    """The pong comes behind messages that the application processes slower than the peer sends them."""
    count = 3000

    def script(wire: Wire) -> None:
        wire.accept()
        wire.send(text("x" * 1000) * count)
        while (received := wire.read_frame()).opcode == PING:
            wire.send(pong(received.payload))
        wire.send(text("done"))
        wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, ping_interval=0.05, ping_timeout=0.1, max_queue=None) as ws:
        for number in range(count):
            assert ws.recv(timeout=5) == "x" * 1000
            if not number % 100:
                time.sleep(0.05)
        ws.send("all")
        assert ws.recv(timeout=5) == "done"


def test_close_waits_for_no_pong(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept()
        received = wire.read_until_close()
        wire.send(close(1000))
        return received

    server = scripted(script)
    ws = connect(server.uri, ping_interval=0.05, ping_timeout=20)
    with pytest.raises(TimeoutError):
        ws.recv(timeout=0.15)
    with within(2):
        ws.close()
    assert ws.close_code == 1000
