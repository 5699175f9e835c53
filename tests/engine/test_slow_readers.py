"""Slow honest readers, drawn by chance: publishers that wait for room adapt to them, and none is disconnected.

``WIRESPEED_PACE_SEED`` is the first seed, by default 1; a failure names its own.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import pytest

from campaigns.common.wire import Codec
from wirespeed.engine import Engine, Session

FIRST = int(os.environ.get("WIRESPEED_PACE_SEED", "1"))
SECONDS = 4.0

pytestmark = [pytest.mark.wirespeed_only("websockets has no engine"), pytest.mark.timeout(60)]


def dial(engine: Engine, target: str, window: int | None) -> socket.socket:
    sock = socket.socket()
    # As on Ethernet: the loopback's segments of 64 KiB wait for windows that smaller receive buffers seldom open.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
    if window is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.settimeout(10)
    sock.connect(engine.addresses[0])
    sock.sendall(
        f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    return sock


class Readers:
    """Clients that each read a number of bytes in a second, in a thread."""

    def __init__(self, socks: list[socket.socket], rates: list[float]) -> None:
        self.got = [0] * len(socks)
        self.ended: list[int] = []
        self._socks, self._rates = socks, rates
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < SECONDS:
            for number, sock in enumerate(self._socks):
                wanted = min(int(self._rates[number] * passed) - self.got[number], 1 << 20)
                if wanted <= 0 or number in self.ended:
                    continue
                try:
                    data = sock.recv(wanted, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    data = b""
                if not data:
                    self.ended.append(number)
                self.got[number] += len(data)
            time.sleep(0.005)

    def start(self) -> None:
        self._thread.start()

    def is_reading(self) -> bool:
        return self._thread.is_alive()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 4))
def test_slow_readers_are_not_disconnected(seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.choice([100e3, 200e3, 500e3, 1e6, 5e6])
    count, size = rng.choice([1, 1, 2, 5]), rng.choice([100, 1_000, 20_000])
    limit = rng.choice([256 * 1024, 1 << 20])
    # A receive buffer of megabytes announces freed space only a sixteenth at a time. One of 512 KiB was seen not to
    # announce for seconds that it was empty (Linux 6.18: only window probes were sent).
    window = rng.choice([16_384, 65_536]) if rate < 1e6 else None
    relayed, workers = rng.random() < 0.5, rng.choice([1, 2])
    about = f"seed {seed}: {count} at {rate:,.0f} bytes/s, {size=} {limit=} {window=} {relayed=} {workers=}"
    engine = Engine("127.0.0.1", workers=workers, outbox_limit=limit)
    if relayed:
        engine.relay("/{topic}", send=rng.random() < 0.5)
        engine.relay("/tell/{topic}", receive=False)
    with engine:
        socks = [dial(engine, "/room", window) for _ in range(count)]
        # Each a little faster or slower than the others.
        readers = Readers(socks, [rate * rng.uniform(0.9, 1.1) for _ in socks])
        sessions: list[Session] = []
        while len(sessions) < count and not relayed:
            sessions += [event.session for event in next(engine.batches(timeout=10))]
        for session in sessions:
            session.subscribe("room")
        readers.start()
        sender = dial(engine, "/tell/room", None) if relayed else None
        if sender is not None:
            sender.setblocking(False)
        message = bytes(size)
        frames = Codec(masks=True, deflate=False).message([message], text=False) * (64 if size < 10_000 else 4)
        left = memoryview(bytes(frames))
        published = 0
        while readers.is_reading():
            if sender is not None:
                try:
                    sent = sender.send(left)
                    published += sent
                    left = left[sent:] or memoryview(bytes(frames))
                except BlockingIOError:
                    time.sleep(0.002)
                continue
            if not engine.has_room("room"):
                engine.wait_for_room("room", timeout=0.1)  # it may end meanwhile
                continue
            engine.publish("room", message)
            published += size
        assert not readers.ended, about
        assert sum(engine.stats()["messages_dropped_by_policy"].values()) == 0, about
        assert published > min(readers.got) / 2 > 0, about
        for sock in [*socks, *([sender] if sender else [])]:
            sock.close()
