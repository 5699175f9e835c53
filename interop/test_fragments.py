"""Fragmented messages, sent by us and by the peer."""

from __future__ import annotations

import pytest

from harness.link import Link
from harness.report import seen

TEXT = "".join(f"{number} é 日本 " for number in range(1_000))
BINARY = bytes(range(256)) * 40

CUT = 700


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_our_fragments(link: Link, compression: str | None) -> None:
    fragments = [
        ["one", "", "two", "three"],
        [TEXT[at : at + CUT] for at in range(0, len(TEXT), CUT)],
        [BINARY[at : at + CUT] for at in range(0, len(BINARY), CUT)],
        [b"", b""],
    ]
    whole: list[str | bytes] = ["onetwothree", TEXT, BINARY, b""]
    async with link.open(compression=compression) as pair:
        for parts, message in zip(fragments, whole, strict=True):
            await pair.ours.send(parts)
            assert await pair.ours.recv() == message
    assert (await pair.report()).messages == seen(whole)


@pytest.mark.peers("send fragments")
@pytest.mark.parametrize("compression", ["deflate", None])
async def test_peer_fragments(link: Link, compression: str | None) -> None:
    async with link.open(f"echo?cut={CUT}", compression=compression) as pair:
        for message in (TEXT, BINARY, "short", TEXT):
            await pair.ours.send(message)
            assert await pair.ours.recv() == message


@pytest.mark.peers("send fragments")
async def test_peer_fragments_are_streamed(link: Link) -> None:
    async with link.open(f"echo?cut={CUT}", compression=None) as pair:
        for message in (TEXT, BINARY):
            await pair.ours.send(message)
            fragments = [fragment async for fragment in pair.ours.recv_streaming()]
            assert type(message)().join(fragments) == message
            # Sizes in characters or bytes. An empty fragment ends the message where a library does not know which one
            # is last.
            most = len(message.encode() if isinstance(message, str) else message) // CUT + 2
            assert len(message) // CUT <= len(fragments) <= most
