"""Limits and flow control of a client."""

from __future__ import annotations

import resource
import threading
from typing import Any

import pytest

from support.checks import describe, within
from support.faults import DEFLATE
from support.frames import BINARY, CONT, binary, deflate, frame, text
from support.scripted import DEADLINE, Disconnected, Scripted, Wire
from support.servers import WebSocketsServer
from support.subject import connect, exceptions


@pytest.mark.parametrize("max_size", [1, 125, 126, 1000, 65_535, 65_536, 1 << 20])
def test_max_size(server: WebSocketsServer, max_size: int) -> None:
    with connect(server.uri, max_size=max_size, compression=None) as ws:
        ws.send(bytes(max_size))
        assert len(ws.recv(timeout=5)) == max_size
        ws.send(bytes(max_size + 1))
        with pytest.raises(exceptions.ConnectionClosedError) as raised:
            ws.recv(timeout=5)
    assert raised.value.sent is not None
    assert raised.value.sent.code == 1009


def test_max_size_counts_bytes_not_characters(server: WebSocketsServer) -> None:
    with connect(server.uri, max_size=100) as ws:
        ws.send("é" * 50)
        assert ws.recv(timeout=5) == "é" * 50
        ws.send("é" * 51)
        with pytest.raises(exceptions.ConnectionClosedError):
            ws.recv(timeout=5)


def test_max_size_does_not_limit_sending(server: WebSocketsServer) -> None:
    with connect(server.uri + "/sink", max_size=100) as ws:
        ws.send(bytes(100_000))
        ws.send("?")
        assert ws.recv(timeout=5) == "100000"


def test_no_max_size(server: WebSocketsServer) -> None:
    with connect(server.uri + f"/binary?size={5 << 20}", max_size=None) as ws:
        assert len(ws.recv(timeout=10)) == 5 << 20


@pytest.mark.wirespeed_only("the text is ours")
def test_size_error_names_the_option(server: WebSocketsServer) -> None:
    ws = connect(server.uri + "/binary?size=2000", max_size=1000)
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    ws.close()
    told = describe(raised.value)
    assert "max_size" in told
    assert "1000" in told


@pytest.mark.wirespeed_only("websockets limits fragments by an environment variable")
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_max_fragments(scripted: Scripted, limit: int) -> None:
    def message(count: int) -> bytes:
        return b"".join(frame(CONT if index else BINARY, b"x", fin=index == count - 1) for index in range(count))

    def script(wire: Wire) -> Any:
        wire.accept(then=message(limit) + message(limit + 1))
        return wire.read_until_close()

    server = scripted(script)
    ws = connect(server.uri, max_fragments=limit)
    assert ws.recv(timeout=5) == b"x" * limit
    with pytest.raises(exceptions.ConnectionClosedError) as raised:
        ws.recv(timeout=5)
    assert server.result[1].code == 1009
    assert "max_fragments" in describe(raised.value)
    ws.close()


@pytest.mark.wirespeed_only("websockets limits fragments by an environment variable")
def test_no_max_fragments(scripted: Scripted) -> None:
    def script(wire: Wire) -> Any:
        wire.accept(then=binary(b"", fin=False) + frame(CONT, b"x", fin=False) * 10_000 + frame(CONT))
        return wire.read_until_close()

    with connect(scripted(script).uri, max_fragments=None) as ws:
        assert ws.recv(timeout=5) == b"x" * 10_000


def peak() -> int:
    """The most memory that this process has ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.skipif(not hasattr(resource, "getrusage"), reason="no memory figures")
def test_decompression_bomb_is_refused(scripted: Scripted) -> None:
    """256 MiB are compressed to 256 kB: the memory of the process must not grow by that."""
    bomb = deflate(bytes(256 << 20))

    def script(wire: Wire) -> Any:
        wire.accept(DEFLATE, then=binary(bomb, rsv=4))
        return wire.read_until_close()

    server = scripted(script)
    before = peak()
    ws = connect(server.uri)
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=10)
    assert server.result[1].code == 1009
    assert peak() - before < 64 << 20
    ws.close()


def test_declared_length_is_not_allocated(scripted: Scripted) -> None:
    """Without a limit a peer may announce any length; memory is allocated as the bytes arrive."""

    def script(wire: Wire) -> Any:
        wire.accept(then=frame(BINARY, b"some", length=1 << 40))
        server.pause()

    server = scripted(script)
    before = peak()
    ws = connect(server.uri, max_size=None, close_timeout=0.1)
    with pytest.raises(TimeoutError):
        ws.recv(timeout=0.2)
    assert peak() - before < 256 << 20
    server.release.set()
    with pytest.raises(exceptions.ConnectionClosedError):
        ws.recv(timeout=5)
    ws.close()


def test_slow_application_applies_backpressure(scripted: Scripted) -> None:
    """Memory is bounded: unreceived messages stay in the network, and the peer's send blocks."""
    piece, most = binary(bytes(1 << 16)), 4096  # up to 256 MiB

    def script(wire: Wire) -> int:
        wire.accept()
        sent = 0
        wire.sock.settimeout(1)
        try:
            while sent < most:
                wire.sock.sendall(piece)
                sent += 1
        except TimeoutError:
            pass
        server.reached.set()
        # The rest of the cut frame does not matter: the client aborts.
        wire.sock.settimeout(DEADLINE)
        wire.read_to_end()
        return sent

    server = scripted(script)
    ws = connect(server.uri, close_timeout=0.1)
    assert len(ws.recv(timeout=5)) == 1 << 16
    server.wait_reached()
    with within(5):
        ws.close()
    assert server.result < most // 4


def test_nothing_is_lost_by_flow_control(scripted: Scripted) -> None:
    count = 3000

    def script(wire: Wire) -> None:
        wire.accept()
        for number in range(count):
            wire.send(text(f"{number} " + "x" * 1000))
        server.reached.set()
        wire.read_until_close()

    server = scripted(script)
    with connect(server.uri, max_queue=4) as ws:
        received = [int(ws.recv(timeout=10).split()[0]) for _ in range(count)]
        server.wait_reached()
    assert received == list(range(count))


def test_send_waits_for_a_stalled_peer(scripted: Scripted) -> None:
    """``send`` blocks the application instead of buffering without bound; it continues when the peer reads."""

    def script(wire: Wire) -> Any:
        wire.accept()
        server.pause()
        return wire.read_until_close()

    server = scripted(script, receive_buffer=4096)
    progress: list[int] = []

    def send() -> None:
        for number in range(64):
            ws.send(bytes(1 << 20))
            progress.append(number)

    with connect(server.uri, compression=None) as ws:
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        server.wait_reached()
        thread.join(0.5)
        assert thread.is_alive(), "64 MiB were buffered"
        server.release.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert [len(frame.payload) for frame in server.result[0]] == [1 << 20] * 64


@pytest.mark.wirespeed_only("websockets deadlocks")
def test_close_towards_a_stalled_peer_is_bounded(scripted: Scripted) -> None:
    """The close frame cannot leave, because the buffers are full and the peer does not read."""

    def script(wire: Wire) -> None:
        wire.accept()
        server.pause()

    server = scripted(script, receive_buffer=4096)
    ws = connect(server.uri, compression=None, close_timeout=0.3)
    ended: list[Exception] = []

    def send() -> None:
        try:
            while True:
                ws.send(bytes(1 << 20))
        except exceptions.ConnectionClosed as exc:
            ended.append(exc)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    server.wait_reached()
    thread.join(0.3)
    assert thread.is_alive()
    with within(4):
        ws.close()
        thread.join(5)
    assert [type(exc) for exc in ended] == [exceptions.ConnectionClosedError]
    assert ws.state.name == "CLOSED"


def test_lost_connection_while_reading_is_paused(scripted: Scripted) -> None:
    """Messages that arrived before are still delivered, in order, and then the lost connection is reported."""

    def script(wire: Wire) -> None:
        wire.accept()
        try:
            for number in range(200):
                wire.send(text(f"{number}"))
        except Disconnected:
            pass

    server = scripted(script)
    ws = connect(server.uri, max_queue=2)
    server.join()
    received = []
    with pytest.raises(exceptions.ConnectionClosedError):
        for message in ws:
            received.append(message)
    assert received == [str(number) for number in range(200)]
    ws.close()
