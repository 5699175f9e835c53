"""Messages that exceed our limit or the peer's."""

from __future__ import annotations

import pytest

from harness.link import Link
from peers.contract import LIMIT
from wirespeed import ConnectionClosedError, PayloadTooBig

SIZE = 100_000


@pytest.mark.parametrize("compression", ["deflate", None])
async def test_message_exceeding_our_limit(link: Link, compression: str | None) -> None:
    async with link.open(f"push?size={SIZE}", max_size=LIMIT, compression=compression) as pair:
        with pytest.raises(ConnectionClosedError) as caught:
            await pair.ours.recv()
        assert isinstance(caught.value.__cause__, PayloadTooBig)
        assert caught.value.sent is not None
        assert caught.value.sent.code == 1009
        report = await pair.report()
        assert report.code == 1009


@pytest.mark.peers("limit messages")
@pytest.mark.parametrize("compression", ["deflate", None])
async def test_message_exceeding_peer_limit(link: Link, compression: str | None) -> None:
    async with link.open(variant="limited", compression=compression) as pair:
        message = bytes(LIMIT - 1)
        await pair.ours.send(message)
        assert await pair.ours.recv() == message
        await pair.ours.send(bytes(SIZE))
        with pytest.raises(ConnectionClosedError) as caught:
            await pair.ours.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        await pair.ours.wait_closed()
        assert pair.ours.close_code == 1009
