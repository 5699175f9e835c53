"""Random bytes over sockets to our clients and servers: applications see the same events as with ``websockets``."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator

import pytest

from campaigns.differential.case import Case
from campaigns.differential.ends import ENDS, Ends, Seen, draw_stream, end_campaign, expected
from campaigns.differential.oracle import IS_KNOWN
from support.frames import PING, close, frame
from support.samples import sample

pytestmark = [
    pytest.mark.wirespeed_only("both are compared here"),
    pytest.mark.skipif(not IS_KNOWN, reason="an older websockets"),
]

STREAMS = 60


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    with Ends() as ends:
        yield ends
    gc.collect()


def test_random_bytes(ends: Ends, rotation: str | None) -> None:
    seeds = sample(map(str, range(STREAMS)), 2, rotation)
    tally = end_campaign(ends, iter(seeds))
    if tally.failures:
        pytest.fail("\n".join(tally.failures), pytrace=False)
    assert tally.connections == len(seeds) * len(ENDS)
    if len(seeds) >= STREAMS // 2:
        assert tally.messages > 10, tally
        assert {None, 1002, 1007, 1009} <= set(tally.ends), tally


@pytest.mark.parametrize("end", ENDS)
def test_differences_are_found(ends: Ends, end: str) -> None:
    case = draw_stream("a stream", end)
    mask = bytes(4) if end.endswith("server") else None
    payload = close(1000)[2:]
    stream = frame(1, b"hello", mask=mask) + frame(PING, b"hi", mask=mask) + frame(8, payload, mask=mask)
    case = dataclasses.replace(case, steps=(("receive", stream), ("eof",)), message_size=None, fragment_size=None)
    case = dataclasses.replace(case, most_fragments=None)
    seen = ends.run(end, case)
    assert seen == expected(case)
    assert (seen.messages, seen.received, seen.sent) == (["hello"], (1000, ""), 1000)
    assert seen.frames == [(10, True, b"hi"), (8, b"\x03\xe8")]
    for other in (Case(case.side, (("eof",),)), case.with_steps([("receive", stream[:-1]), ("eof",)])):
        assert seen != expected(other)
    assert seen != Seen(["hello"], (1000, ""), 1000, [])
