"""``wait_closed`` of the blocking drop-in, which has no thread that receives."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest

from support.checks import within
from support.frames import CLOSE, PING, PONG, close, frame, text
from support.scripted import Disconnected, Scripted
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")

if IS_WIRESPEED:
    from wirespeed.compat.websockets.exceptions import ConnectionClosed
    from wirespeed.compat.websockets.sync.client import connect


def frames_until_close(wire: Any, answer: bool = True) -> int:
    """Answers pings until the connection is closed; returns their number."""
    pings = 0
    with contextlib.suppress(Disconnected):
        while (received := wire.read_frame()).opcode != CLOSE:
            if received.opcode == PING:
                pings += 1
                if answer:
                    wire.send(frame(PONG, received.payload))
    return pings


def test_wait_closed_sends_nothing(scripted: Scripted) -> None:
    def script(wire: Any) -> int:
        wire.accept()
        return frames_until_close(wire)

    peer = scripted(script)
    with connect(peer.uri, ping_interval=None) as ws, within(5, at_least=0.5):
        assert not ws.wait_closed(0.5)
    peer.join()
    assert peer.results[0] == 0


def test_wait_closed_sends_pings_that_are_due(scripted: Scripted) -> None:
    """A peer that answers nothing is detected."""

    def script(wire: Any) -> None:
        wire.accept()
        frames_until_close(wire, answer=False)

    peer = scripted(script)
    ws = connect(peer.uri, ping_interval=0.1, ping_timeout=0.2, close_timeout=0.1)
    with within(5):
        assert ws.wait_closed()
    assert ws.close_code == 1006
    peer.join()


def test_wait_closed_without_time(scripted: Scripted) -> None:
    """Data that has arrived is processed."""

    def script(wire: Any) -> None:
        wire.accept()
        server.pause()
        wire.send(close(1000))
        frames_until_close(wire)

    server = scripted(script)
    ws = connect(server.uri, ping_interval=None)
    for timeout in (0, -1, 0.001):
        with within(1):
            assert not ws.wait_closed(timeout)
    server.release.set()
    with within(5):
        while not ws.wait_closed(0):
            time.sleep(0.01)
    assert ws.close_code == 1000


@pytest.mark.parametrize("close_timeout", [None, 3], ids=["none", "some"])
def test_wait_closed_beside_close(scripted: Scripted, close_timeout: float | None) -> None:
    """Another thread is in close(), and the peer is silent."""

    def silent(wire: Any) -> None:
        wire.accept()
        frames_until_close(wire, answer=False)
        server.pause()

    server = scripted(silent)
    ws = connect(server.uri, ping_interval=None, close_timeout=close_timeout)
    closing = threading.Thread(target=ws.close)
    closing.start()
    time.sleep(0.1)
    with within(2, at_least=0.4):
        assert not ws.wait_closed(0.4)
    server.release.set()
    with within(5):
        assert ws.wait_closed()
    closing.join()


def test_wait_closed_beside_send(scripted: Scripted) -> None:
    """Another thread waits for room."""

    def stalled(wire: Any) -> None:
        wire.accept()
        server.pause()
        wire.send(close(1000))
        frames_until_close(wire)

    def send() -> None:
        with contextlib.suppress(ConnectionClosed):
            ws.send(bytes(16 << 20))

    server = scripted(stalled, receive_buffer=4096)
    ws = connect(server.uri, ping_interval=None, compression=None)
    sending = threading.Thread(target=send)
    sending.start()
    time.sleep(0.2)
    with within(2, at_least=0.4):
        assert not ws.wait_closed(0.4)
    server.release.set()
    with within(8):
        assert ws.wait_closed()
    sending.join()


def test_wait_closed_keeps_its_time_limit(scripted: Scripted) -> None:
    """The time limit holds with a peer that answers nothing and with one that sends all the time."""

    def silent(wire: Any) -> None:
        wire.accept()
        frames_until_close(wire, answer=False)

    def flooding(wire: Any) -> None:
        wire.accept(then=text("x") * 1000)
        frames_until_close(wire)

    for script in (silent, flooding):
        peer = scripted(script)
        ws = connect(peer.uri, ping_interval=None, close_timeout=0.1)
        with within(5, at_least=1):
            assert not ws.wait_closed(1)
        ws.close()
        peer.join()


def test_wait_closed_processes_data_before_the_end(scripted: Scripted) -> None:
    """In one packet, and later; messages are kept."""

    def together(wire: Any) -> None:
        wire.accept(then=text("kept") + close(1000))
        frames_until_close(wire)

    def later(wire: Any) -> None:
        wire.accept()
        time.sleep(0.3)
        wire.send(text("kept"))
        time.sleep(0.1)
        wire.send(close(1000))
        frames_until_close(wire)

    for script in (together, later):
        peer = scripted(script)
        ws = connect(peer.uri, ping_interval=None)
        with within(8):
            assert ws.wait_closed()
        assert ws.close_code == 1000
        assert ws.recv() == "kept"
        peer.join()


def test_wait_closed_while_messages_fill_the_queue(scripted: Scripted) -> None:
    """It waits for a thread that receives them."""

    def flooding(wire: Any) -> None:
        wire.accept(then=text("x" * 300_000) * 40 + close(1000))
        frames_until_close(wire)

    def receive() -> None:
        time.sleep(0.3)
        received.extend(ws)

    received: list[Any] = []
    ws = connect(scripted(flooding).uri, ping_interval=None)
    receiving = threading.Thread(target=receive)
    receiving.start()
    with within(8, at_least=0.2):
        assert ws.wait_closed()
    receiving.join()
    assert len(received) == 40


@pytest.mark.parametrize("ack_on_close", [True, False])
def test_pong_and_the_end_of_the_connection(scripted: Scripted, ack_on_close: bool) -> None:
    """No thread waits for the pong, and the event is set nevertheless."""

    def script(wire: Any) -> None:
        wire.accept()
        frames_until_close(wire, answer=False)
        wire.send(close(1000))

    ws = connect(scripted(script).uri, ping_interval=None)
    pong = ws.ping(ack_on_close=ack_on_close)
    assert not pong.is_set()
    ws.close()
    assert pong.is_set() is ack_on_close
