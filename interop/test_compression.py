"""permessage-deflate: negotiation, and the effect on the wire."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.link import Link, Pair
from harness.report import seen
from wirespeed import Deflate

HEADER = "Sec-WebSocket-Extensions"

# The text compresses to half. Beyond that, only its repetition can be compressed, which fits into the common windows of
# 4 KiB.
NOISE = random.Random(7).randbytes(1_200).hex()
TIMES = 20

# More than the handshake, frame headers and closing take.
AROUND = 2_500


async def echo(pair: Pair, messages: list[str]) -> None:
    for message in messages:
        await pair.ours.send(message)
        assert await pair.ours.recv() == message


@pytest.mark.peers("compress")
async def test_compression_negotiated(link: Link) -> None:
    async with link.open() as pair:
        assert "permessage-deflate" in pair.ours.response.headers[HEADER]
        await echo(pair, ["x" * 1_000])
    report = await pair.report()
    assert report.extensions is not None
    assert "permessage-deflate" in report.extensions


async def test_compression_declined(link: Link) -> None:
    async with link.open(compression=None, relayed=True) as pair:
        assert HEADER not in pair.ours.response.headers
        await echo(pair, [NOISE] * TIMES)
    assert (await pair.report()).extensions is None
    assert pair.sent > TIMES * len(NOISE)
    assert pair.received > TIMES * len(NOISE)


@pytest.mark.peers("compress")
async def test_context_takeover(link: Link) -> None:
    """Data sent earlier is not sent again."""
    async with link.open(relayed=True) as pair:
        await echo(pair, [NOISE] * TIMES)
    assert (await pair.report()).messages == seen([NOISE] * TIMES)
    most = 0.2 * TIMES * len(NOISE) + AROUND
    assert pair.sent < most
    if "compress what it sends" not in link.peer.lacks:
        assert pair.received < most


async def each_by_itself(link: Link, variant: str, options: dict[str, Any]) -> None:
    async with link.open(variant=variant, relayed=True, **options) as pair:
        assert "server_no_context_takeover" in pair.ours.response.headers[HEADER]
        await echo(pair, [NOISE] * TIMES)
    assert (await pair.report()).messages == seen([NOISE] * TIMES)
    total = TIMES * len(NOISE)
    assert 0.5 * total < pair.sent < 0.65 * total + AROUND
    if "compress what it sends" not in link.peer.lacks:
        assert 0.5 * total < pair.received < 0.65 * total + AROUND


@pytest.mark.peers("compress", "grant no context takeover")
async def test_our_no_context_takeover(link: Link) -> None:
    compression = Deflate(server_no_context_takeover=True, client_no_context_takeover=True)
    await each_by_itself(link, "default", {"compression": compression})


@pytest.mark.peers("ask for no context takeover")
async def test_peer_no_context_takeover(link: Link) -> None:
    await each_by_itself(link, "no-takeover", {})


@pytest.mark.peers("compress", "limit windows")
@pytest.mark.parametrize("bits", [9, 12])
async def test_small_windows(link: Link, bits: int) -> None:
    """References that go further back than the window would fail the other end's decompression."""
    words = [f"{number:x}" for number in random.Random(7).sample(range(10**6), 300)]
    messages = [" ".join(random.Random(seed).choices(words, k=2_000)) for seed in range(5)]
    compression = Deflate(server_max_window_bits=bits, client_max_window_bits=bits)
    async with link.open(compression=compression) as pair:
        assert f"server_max_window_bits={bits}" in pair.ours.response.headers[HEADER]
        await echo(pair, messages)
    assert (await pair.report()).messages == seen(messages)
