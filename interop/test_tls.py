"""Messages over TLS, with an authority that the peers trust."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Any

import pytest

from harness.link import Link
from harness.report import seen


async def exchange(link: Link, **options: Any) -> None:
    content = random.Random(7).randbytes(1_000_000)
    messages: list[str | bytes] = ["hello 👋", "", b"", content[:125], content[:16_384], content[:65_536], content]
    async with link.open(tls=True, **options) as pair:
        for message in messages:
            echo, _ = await asyncio.gather(pair.ours.recv(), pair.ours.send(message))
            is_same = echo == message
            assert is_same
        await (await pair.ours.ping())
        await pair.ours.close(4001, "bye")
        report = await pair.report()
    assert report.messages == seen(messages)
    assert (report.code, report.reason) == (4001, "bye")


async def test_native(link: Link) -> None:
    await exchange(link)


@pytest.mark.peers(end="server")
async def test_context(link: Link) -> None:
    await exchange(link, ssl=ssl.create_default_context(cafile=link.certificate[0]))
