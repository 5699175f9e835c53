"""Messages that accumulate while a broker pauses are delivered no faster than the sessions read them."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from support.brokers import Memory, broker, wait_for
from support.nodes import Node

from .test_slow_readers import dial

pytestmark = [pytest.mark.wirespeed_only("websockets has no engine"), pytest.mark.timeout(120)]

# Several times the capacity of an outbox and the kernel's buffers.
SIZE, COUNT = 1_000, 8_000
RATE = 5e6


class Reader(threading.Thread):
    """A client that reads at most this many bytes in a second."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock
        self.got = 0
        self.is_cut = False

    def run(self) -> None:
        began = time.monotonic()
        while self.got < SIZE * COUNT:
            data = self.sock.recv(65_536)
            if not data:
                self.is_cut = True
                return
            self.got += len(data)
            time.sleep(max(0.0, began + self.got / RATE - time.monotonic()))


@pytest.mark.parametrize("kind", ["memory", "nats", "redis"])
def test_broker_backlog_closes_no_reading_session(kind: str, tmp_path: Path) -> None:
    with (
        broker(kind, tmp_path) as running,
        Node(running.url) as one,
        Node(running.url, outbox_limit=2**20) as two,
    ):
        readers = [Reader(dial(two.engine, "/?feed", 131_072)) for _ in range(5)]
        wait_for(lambda: two.engine.subscribers("feed") == 5)
        two.wait_for_patterns(1)
        if not isinstance(running, Memory):
            running.pause()
        for _ in range(COUNT):
            assert one.engine.publish("feed", bytes(SIZE)).forwarded
        if not isinstance(running, Memory):
            running.resume()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(60)
            reader.sock.close()
        assert [reader.is_cut for reader in readers] == [False] * 5
        assert all(reader.got >= SIZE * COUNT for reader in readers)
