"""``wait_closed`` of the blocking drop-in, which has no thread that receives."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from interop.checks import within
from interop.frames import CLOSE, PING, PONG, close, frame, text
from interop.scripted import Disconnected, ScriptedServer
from interop.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("it looks at what is ours")

if IS_WIRESPEED:
    from wirespeed.compat.websockets.sync.client import connect

Scripted = Callable[..., ScriptedServer]


def frames_until_close(wire: Any, answer: bool = True) -> int:
    """Answer pings until the connection is closed; return how many there were."""
    pings = 0
    with contextlib.suppress(Disconnected):
        while (received := wire.read_frame()).opcode != CLOSE:
            if received.opcode == PING:
                pings += 1
                if answer:
                    wire.send(frame(PONG, received.payload))
    return pings


def test_wait_closed_sends_few_pings(scripted: Scripted) -> None:
    def script(wire: Any) -> int:
        wire.accept()
        return frames_until_close(wire)

    peer = scripted(script)
    with connect(peer.uri, ping_interval=None) as ws, within(15, at_least=2.5):
        assert not ws.wait_closed(2.5)
    peer.join()
    assert 1 <= peer.results[0] <= 5


def test_wait_closed_does_not_overshoot(scripted: Scripted) -> None:
    """Neither with a peer that answers nothing, nor with one that sends all the time."""

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


def test_wait_closed_sees_what_comes_with_the_pong(scripted: Scripted) -> None:
    """In one packet, and later."""

    def together(wire: Any) -> None:
        wire.accept()
        wire.send(frame(PONG, wire.read_frame().payload) + close(1000))
        frames_until_close(wire)

    def later(wire: Any) -> None:
        wire.accept()
        wire.send(frame(PONG, wire.read_frame().payload))
        time.sleep(0.3)
        wire.send(text("kept") + close(1000))
        frames_until_close(wire)

    for script in (together, later):
        peer = scripted(script)
        ws = connect(peer.uri, ping_interval=None)
        with within(8):
            assert ws.wait_closed()
        assert ws.close_code == 1000
        peer.join()


def test_waiting_for_bytes_without_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, and for a socket that is closed."""
    from wirespeed.compat.websockets.sync import connection

    wait_readable = connection._wait_readable
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(2):
            assert not wait_readable(ours.fileno(), 0)
            assert not wait_readable(ours.fileno(), 0.001)
            theirs.send(b"x")
            assert wait_readable(ours.fileno(), 10)
            assert ours.recv(1) == b"x"
            monkeypatch.delattr(select, "poll", raising=False)
    assert wait_readable(-1, 10)
