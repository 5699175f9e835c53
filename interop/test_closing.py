"""The end of a connection: a closing handshake by either end, and a lost connection."""

from __future__ import annotations

import urllib.parse

import pytest

from harness.link import Link
from wirespeed import ConnectionClosedError, ConnectionClosedOK

CLOSES = [(1000, ""), (1001, "going away"), (3000, ""), (4001, "Grüße 👋"), (4999, "x" * 123)]

PROPER = (1000, 1001)


@pytest.mark.parametrize(("code", "reason"), CLOSES)
async def test_closed_by_us(link: Link, code: int, reason: str) -> None:
    async with link.open() as pair:
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"
        await pair.ours.close(code, reason)
        report = await pair.report()
        assert (report.code, report.reason or "") == (code, reason)
        assert report.clean is not False
        assert pair.ours.close_code == (1000 if "echo the code" in link.peer.lacks else code)


async def closed_by_them(link: Link, task: str, code: int, reason: str) -> None:
    async with link.open(task) as pair:
        with pytest.raises(ConnectionClosedOK if code in (*PROPER, 1005) else ConnectionClosedError) as caught:
            await pair.ours.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (code, reason)
        assert caught.value.rcvd_then_sent
        await pair.ours.wait_closed()
        assert (pair.ours.close_code, pair.ours.close_reason) == (code, reason)
        report = await pair.report()
        # We answer with the received code.
        assert report.code == code
        assert report.clean is not False


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, ""), (1000, "done"), (3000, ""), (4001, "Grüße 👋"), (4999, "x" * 123)]
)
async def test_closed_by_peer(link: Link, code: int, reason: str) -> None:
    await closed_by_them(link, f"close?code={code}&reason={urllib.parse.quote(reason)}", code, reason)


@pytest.mark.peers("close with 1001")
async def test_peer_closes_with_going_away(link: Link) -> None:
    await closed_by_them(link, "close?code=1001", 1001, "")


@pytest.mark.peers("close without a code")
async def test_peer_closes_without_code(link: Link) -> None:
    await closed_by_them(link, "close", 1005, "")


async def test_aborted_by_us(link: Link) -> None:
    async with link.open() as pair:
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"
        pair.ours.abort()
        report = await pair.report()
    assert report.code == (None if "tell 1006" in link.peer.lacks else 1006)
    assert report.clean is not True
    assert report.count == 1


@pytest.mark.peers(ways=("fd", "transport", "sync"))
async def test_killed(victim: Link) -> None:
    async with victim.open() as pair:
        await pair.ours.send("hello")
        assert await pair.ours.recv() == "hello"
        victim.process.kill()
        with pytest.raises(ConnectionClosedError) as caught:
            await pair.ours.recv()
        assert caught.value.rcvd is None
        await pair.ours.wait_closed()
        assert pair.ours.close_code == 1006
