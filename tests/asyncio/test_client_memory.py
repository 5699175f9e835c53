"""The memory of a connection whose peer sends more than the application receives is bounded, and every message arrives
later.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.asyncio_tools import soon
from support.connecting import Connect
from support.frames import binary
from support.scripted import Disconnected, Wire

pytestmark = [
    pytest.mark.wirespeed_only("its limits in bytes are ours"),
    pytest.mark.skipif(sys.platform != "linux", reason="it asks the system how much memory this takes"),
]


# Longer than any wait here, shorter than the time limit of a test.
PATIENCE = 10.0

MESSAGE = bytes(1000)
COUNT = 4000
CONNECTIONS = 20

# Memory beside the queue: a small multiple of one read of the socket.
MOST = 1 << 20

# The limits, and the number of messages that may be queued then: a few more, taken while reading pauses.
LIMITS: dict[str, tuple[dict[str, Any], int]] = {
    "bytes": ({"max_queue": None, "max_queue_bytes": 65_536}, 65_536 // len(MESSAGE)),
    "both": ({"max_queue": 16, "max_queue_bytes": 65_536}, 32),
}


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


class Flood:
    """A server that answers each connection's first frame with all messages at once."""

    def __init__(self) -> None:
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(CONNECTIONS)
        self.port = self.listener.getsockname()[1]
        self.blob = binary(MESSAGE) * COUNT
        self.started = 0
        self.threads: list[threading.Thread] = []

    def connect(self) -> socket.socket:
        """Connects with a receive buffer that holds all messages, so that the server never blocks."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 6_000_000)
        sock.connect(("127.0.0.1", self.port))
        thread = threading.Thread(target=self._serve, args=(self.listener.accept()[0],))
        self.threads.append(thread)
        thread.start()
        return sock

    def _serve(self, sock: socket.socket) -> None:
        wire = Wire(sock)
        with sock, contextlib.suppress(Disconnected, OSError):
            wire.accept()
            wire.read_frame()
            self.started += 1
            wire.send(self.blob)
            while sock.recv(1 << 16):
                pass

    def stop(self) -> None:
        self.listener.close()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def flood() -> Iterator[Flood]:
    flood = Flood()
    yield flood
    flood.stop()


async def settled(connections: list[Any]) -> None:
    """Waits until the queues no longer grow."""
    last: list[Any] = []
    since = 0

    def quiet() -> bool:
        nonlocal last, since
        now = [ws.stats()["receive_queue_bytes"] for ws in connections]
        since = since + 1 if now == last and min(now) > 0 else 0
        last = now
        return since > 30

    await soon(quiet, PATIENCE)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("received", [0, 1], ids=["nothing", "one"])
async def test_memory_of_unreceived_messages_is_bounded(
    connect: Connect, flood: Flood, received: int, limit: str
) -> None:
    """No message or one is received: the rest stays with the system, and arrives when it is received."""

    options, most = LIMITS[limit]
    uri = f"ws://127.0.0.1:{flood.port}/"
    connections = [
        await connect(
            uri,
            sock=flood.connect(),
            compression=None,
            **options,
            ping_interval=None,
            close_timeout=0.1,
        )
        for _ in range(CONNECTIONS)
    ]
    try:
        before = resident()
        for ws in connections:
            await ws.send("go")
        for ws in connections:
            for _ in range(received):
                assert await asyncio.wait_for(ws.recv(), PATIENCE) == MESSAGE
        await settled(connections)
        assert max(ws.stats()["receive_queue_messages"] for ws in connections) <= most
        taken = (resident() - before) / CONNECTIONS
        for ws in connections[:5]:
            for _ in range(COUNT - received):
                assert await asyncio.wait_for(ws.recv(), PATIENCE) == MESSAGE
            assert ws.stats()["receive_queue_bytes"] == 0
            assert ws.stats()["messages_received"] == COUNT
    finally:
        for ws in connections:
            ws.abort()
        for ws in connections:
            await ws.wait_closed()
    assert taken < MOST
