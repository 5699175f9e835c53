"""The queue of an application that does not receive: ``max_queue`` and ``max_queue_bytes``, both marks of each."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from support.asyncio_tools import settled, soon
from support.connecting import Connect
from support.frames import binary
from support.scripted import Disconnected, Scripted, ScriptedServer, Wire

pytestmark = pytest.mark.wirespeed_only("limits in bytes, and stats, are ours")


SIZE = 1000
COST = SIZE + 64  # of a message in the queue
COUNT = 12_000  # thrice the default of max_queue_bytes, and more than the sockets take beside

# Unparsed bytes count as bytes, but not as messages. There is at most one read of a socket with a small buffer, or one
# delivery of a transport.
UNPARSED = 200_000 // COST

# The options, and the maximum and minimum number of queued messages.
LIMITS: dict[str, tuple[dict[str, Any], int, int]] = {
    "defaults": ({}, (4 << 20) // COST + 1, (4 << 20) // COST - UNPARSED),
    "both": ({"max_queue": 2000, "max_queue_bytes": 1_000_000}, 2000, 2000),
    "messages alone": ({"max_queue": 500, "max_queue_bytes": None}, 500, 500),
    "no bytes": ({"max_queue": 700, "max_queue_bytes": 0}, 700, 700),
    "few messages": (
        {"max_queue": 1, "max_queue_bytes": 1_000_000},
        1_000_000 // COST + 1,
        1_000_000 // COST - UNPARSED,
    ),
    "bytes alone": (
        {"max_queue": None, "max_queue_bytes": 2_000_000},
        2_000_000 // COST + 1,
        2_000_000 // COST - UNPARSED,
    ),
    "nothing": ({"max_queue": 0, "max_queue_bytes": 0}, 1, 1),
}


def flood(wire: Wire) -> None:
    """Sends everything while the client is connected; each message begins with its number."""
    wire.accept()
    with contextlib.suppress(Disconnected):
        for number in range(COUNT):
            wire.send(binary(number.to_bytes(4, "big").ljust(SIZE, b"\0")))
        wire.read_until_close()


def small_socket(server: ScriptedServer) -> socket.socket:
    """Returns a socket with small system buffers, which bounds the bytes of one read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.connect((server.host, server.port))
    sock.setblocking(False)
    return sock


def kept(ws: Any) -> int:
    """Returns the number of queued messages."""
    return int(ws.stats()["receive_queue_messages"])


@pytest.mark.parametrize("limit", LIMITS)
async def test_reading_stops_at_the_high_mark(scripted: Scripted, connect: Connect, limit: str) -> None:
    """Reading stops exactly at the first of both high marks; nothing is lost."""
    options, most, least = LIMITS[limit]
    server = scripted(flood)
    async with connect(server.uri, sock=small_socket(server), compression=None, **options) as ws:
        await soon(lambda: kept(ws) >= least, 15)
        assert await settled(lambda: kept(ws)) <= most
        for number in range(COUNT):
            assert int.from_bytes((await ws.recv())[:4], "big") == number


async def test_no_limit(scripted: Scripted, connect: Connect) -> None:
    server = scripted(flood)
    options = {"max_queue": None, "max_queue_bytes": None}
    async with connect(server.uri, sock=small_socket(server), compression=None, **options) as ws:
        await soon(lambda: kept(ws) == COUNT, 15)


@pytest.mark.parametrize(
    ("options", "high", "low", "slack"),
    [
        ({"max_queue": (2000, 200), "max_queue_bytes": None}, 2000, 200, 0),
        ({"max_queue": 2000, "max_queue_bytes": None}, 2000, 500, 0),
        ({"max_queue": None, "max_queue_bytes": 2_000_000}, 2_000_000 // COST, 500_000 // COST, UNPARSED),
        # The first of both.
        ({"max_queue": (1800, 100), "max_queue_bytes": 2_000_000}, 2_000_000 // COST, 500_000 // COST, UNPARSED),
        ({"max_queue": (1800, 1500), "max_queue_bytes": 1_000_000}, 1800, 1500, 0),
    ],
    ids=["messages", "a quarter", "bytes", "bytes first", "messages first"],
)
async def test_reading_continues_at_the_low_mark(
    scripted: Scripted, connect: Connect, options: dict[str, Any], high: int, low: int, slack: int
) -> None:
    """Reading continues at the low mark, and stops above the high mark again."""
    server = scripted(flood)
    async with connect(server.uri, sock=small_socket(server), compression=None, **options) as ws:
        await soon(lambda: kept(ws) >= high - slack, 15)
        await settled(lambda: kept(ws))
        while kept(ws) > low + 2:
            await ws.recv()
        assert await settled(lambda: kept(ws)) == low + 2, "it reads above the low mark"
        for _ in range(4 + slack):
            await ws.recv()
        await soon(lambda: kept(ws) >= high - slack, 15)
        assert await settled(lambda: kept(ws)) <= high + 1
