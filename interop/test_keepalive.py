"""Pings both ways, with and without other messages."""

from __future__ import annotations

import asyncio

import pytest

from harness.link import Link, Pair


async def idle(pair: Pair, seconds: float) -> None:
    """Only receives for a time. A blocking connection handles pings meanwhile."""
    receiving = asyncio.ensure_future(pair.ours.recv())
    await asyncio.sleep(seconds)
    assert not receiving.done()
    await pair.ours.send("still here")
    assert await receiving == "still here"


async def test_our_pings(link: Link) -> None:
    async with link.open() as pair:
        for data in (b"", b"\x00\xff", b"x" * 125):
            pong = await pair.ours.ping(data)
            assert 0 < await pong < 20
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"


async def test_our_keepalive(link: Link) -> None:
    async with link.open(ping_interval=0.1, ping_timeout=10) as pair:
        assert pair.ours.latency == 0
        await idle(pair, 0.5)
        assert pair.ours.latency > 0


@pytest.mark.peers("ping")
async def test_their_pings(link: Link) -> None:
    async with link.open("ping?n=5") as pair:
        assert await pair.ours.recv() == "5 pongs"
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"


@pytest.mark.peers("keep alive", ways=("fd", "transport", "sync"))
async def test_peer_keepalive(link: Link) -> None:
    """Without pongs the peer would close the connection within that time."""
    async with link.open(variant="keepalive") as pair:
        await idle(pair, 1.8)
    assert (await pair.report()).code == 1000
