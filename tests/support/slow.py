"""Scripts of slow or stopping peers: raw servers for the tests of flow control and keepalive."""

from __future__ import annotations

import time
from collections.abc import Callable

from .frames import TEXT, Close, Frame, frame
from .scripted import Disconnected, Wire

__all__ = ["fill", "read_slowly", "send_slowly"]


def send_slowly(size: int, seconds: float, *, stop_at: float = 1) -> Callable[[Wire], tuple[list[Frame], Close | None]]:
    """Returns a script that sends one text message in one frame, evenly over some time, and answers nothing.

    Args:
        size: Bytes of the message.
        seconds: The duration.
        stop_at: The part of the message after which it sends no more.
    """

    def script(wire: Wire) -> tuple[list[Frame], Close | None]:
        wire.accept()
        data = frame(TEXT, b"x" * size)
        pieces = max(20, int(seconds / 0.02))
        step = -(-len(data) // pieces)
        for start in range(0, int(len(data) * stop_at), step):
            wire.send(data[start : start + step])
            time.sleep(seconds / pieces)
        return wire.read_until_close()

    return script


def read_slowly(step: int, pause: float, seconds: float) -> Callable[[Wire], tuple[list[Frame], Close | None]]:
    """Returns a script that reads little at a time, and after some time everything.

    Args:
        step: Bytes of one read.
        pause: Seconds between two reads.
        seconds: The duration of slow reading.
    """

    def script(wire: Wire) -> tuple[list[Frame], Close | None]:
        wire.accept()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            wire.buffer += wire.sock.recv(step)
            time.sleep(pause)
        return wire.read_until_close()

    return script


def fill(wire: Wire, size: int = 10_000) -> None:
    """Sends binary messages until the other end reads no more.

    Args:
        wire: After the opening handshake.
        size: Bytes of each message.
    """
    data = frame(2, bytes(size))
    wire.sock.settimeout(0.3)
    try:
        while True:
            wire.send(data)
    except (TimeoutError, Disconnected):
        pass
