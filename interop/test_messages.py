"""Messages both ways: every type and size, their order, and their content."""

from __future__ import annotations

import asyncio
import random

import pytest

from harness.link import Link
from harness.report import seen

TEXTS = [
    "hello",
    "",
    "ä",
    "日本語のテキスト",
    "👋🏽 𝄞 🧑‍🚀",
    "\x00\x01\n\x7f",
    "\ud7ff\ue000\U0010ffff",
    "x" * 70_000,
    "é" * 65_536,
]

# Sizes around the lengths at which the frame header grows.
SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 200_000]

EVERY_BYTE = bytes(range(256)) * 5

TEN_MEGABYTES = 10_000_000


async def test_text(link: Link) -> None:
    async with link.open() as pair:
        for text in TEXTS:
            await pair.ours.send(text)
            assert await pair.ours.recv() == text
    assert (await pair.report()).messages == seen(TEXTS)


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_binary(link: Link, compression: str | None) -> None:
    content = random.Random(7).randbytes(SIZES[-1])
    messages = [EVERY_BYTE, *(content[:size] for size in SIZES)]
    async with link.open(compression=compression) as pair:
        for message in messages:
            await pair.ours.send(message)
            assert await pair.ours.recv() == message
    assert (await pair.report()).messages == seen(messages)


async def _echo(link: Link, message: str | bytes, compression: str | None) -> None:
    """Echoes a message too large for the buffers of both ends and the network: it is sent and received at the same
    time.
    """
    async with link.open(compression=compression) as pair:
        echo, _ = await asyncio.gather(pair.ours.recv(), pair.ours.send(message))
        # Not compared by the assertion itself, which would print both.
        is_same = echo == message
        assert is_same
    assert (await pair.report()).messages == seen([message])


async def test_ten_megabytes(link: Link) -> None:
    await _echo(link, random.Random(7).randbytes(TEN_MEGABYTES), None)


@pytest.mark.peers("take 10 MB compressed")
async def test_ten_megabytes_compressed(link: Link) -> None:
    unit = random.Random(7).randbytes(5_000).hex().encode()
    await _echo(link, unit * (TEN_MEGABYTES // len(unit)), "deflate")


async def test_many_in_order(link: Link) -> None:
    messages = [f"message {number}" if number % 2 else b"%d" % number for number in range(2_000)]
    async with link.open() as pair:

        async def receive() -> list[str | bytes]:
            return [await pair.ours.recv() for _ in messages]

        received, _ = await asyncio.gather(receive(), pair.ours.send_many(messages))
        assert received == messages
    assert (await pair.report()).messages == seen(messages)
