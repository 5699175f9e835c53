"""Random bytes and calls through our protocol and that of ``websockets``: equal results, except for intended
differences.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator

import pytest

from campaigns.differential.campaign import campaign
from campaigns.differential.case import Case, Deflate, Step
from campaigns.differential.compare import compare, first_difference
from campaigns.differential.core import Core, CoreMissing
from campaigns.differential.decisions import DECISIONS
from campaigns.differential.generate import draw
from campaigns.differential.oracle import IS_KNOWN
from campaigns.differential.shrink import shrink
from support.frames import BINARY, CLOSE, CONT, PING, TEXT, close, deflate, frame
from support.samples import sample

pytestmark = [
    pytest.mark.wirespeed_only("both are compared here"),
    pytest.mark.skipif(not IS_KNOWN, reason="an older websockets"),
]

CASES = 1000
BLOCKS = 4


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    try:
        core = Core()
    except CoreMissing as exc:
        pytest.skip(str(exc))
    with core:
        yield core


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_bytes_and_calls(core: Core, block: int, rotation: str | None) -> None:
    size = CASES // BLOCKS
    seeds = sample(map(str, range(block * size, (block + 1) * size)), 2, rotation)
    tally = campaign(core, iter(seeds))
    if tally.failures:
        pytest.fail("\n".join(tally.failures), pytrace=False)
    assert tally.cases == len(seeds)
    assert tally.alike > len(seeds) // 3, tally
    if len(seeds) < size // 2:
        return  # some cases below may be in another rotation
    # Something was compared: a generator of empty cases would pass as well.
    for event in (
        "text",
        "binary",
        "ping",
        "pong",
        "close",
        "fault 1002",
        "fault 1007",
        "fault 1009",
        "refused",
        "sent 1",
    ):
        assert tally.events[event] > 0, tally


# In the first case websockets was lost, and could not be queried: it had no compression state of its own between two
# messages. In the second websockets held back the inflated data of a fragment beyond the limit.
@pytest.mark.parametrize("seed", ["1795534838", "1795560302"])
def test_earlier_findings(core: Core, seed: str) -> None:
    tally = campaign(core, iter([seed]))
    assert (tally.cases, tally.failures) == (1, [])


def receive(*frames: bytes) -> Step:
    return ("receive", b"".join(frames))


def compressed(payload: bytes, opcode: int = BINARY, *, fin: bool = True) -> bytes:
    return frame(opcode, payload, fin=fin, rsv=0 if opcode == CONT else 4)


PLAIN = Deflate()
FIRST: Step = ("first", "text", b"begun", None)


def finished(data: bytes) -> bytes:
    """Returns a message in a final block: RFC 7692, section 7.2.3.4."""
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush() + b"\x00"


def too_far() -> list[bytes]:
    """Returns two messages, the second of which refers to data that a window of 512 bytes has lost."""
    stream = zlib.compressobj(9, wbits=-15)
    past = bytes(range(256)) * 3
    first = stream.compress(past[::-1] + past) + stream.flush(zlib.Z_SYNC_FLUSH)
    second = stream.compress(past[::-1]) + stream.flush(zlib.Z_SYNC_FLUSH)
    return [compressed(first[:-4]), compressed(second[:-4])]


# One case for each decision, in which it alone makes the difference.
EXAMPLES = {
    "at-once": Case("client", (receive(frame(TEXT, b"\xff", length=10)),)),
    "header-when-complete": Case("client", (receive(b"\x81\x85"),)),
    "rules-before-size": Case("client", (receive(frame(TEXT, b"x" * 20, rsv=2)),), message_size=10),
    "shortest-length": Case("client", (receive(frame(TEXT, b"short", length_bytes=2)),)),
    "top-bit": Case("client", (receive(frame(BINARY, length=1 << 63, length_bytes=8)),)),
    "control-frames-have-no-limit": Case("client", (receive(frame(PING, b"ping")),), message_size=1),
    "fragments-have-a-limit": Case(
        "client", (receive(frame(TEXT, b"a", fin=False), frame(CONT, b"b")),), most_fragments=1
    ),
    "close-inside-a-message": Case("client", (receive(frame(TEXT, b"a", fin=False), close(1000)),)),
    "code-before-reason": Case("client", (receive(frame(CLOSE, b"\x00\x00\xff")),)),
    "goes-on-after-1011": Case("client", (FIRST, ("close", 1000, ""), receive(frame(TEXT, b"heard")))),
    "checks-the-call-first": Case("client", (FIRST, ("close", 1006, ""))),
    "quiet-after-close": Case("client", (("close", 1000, ""), ("ping", b""))),
    "inflated-size-counts": Case("client", (receive(compressed(deflate(b"abcd"))),), message_size=4, deflate=PLAIN),
    "final-block": Case("client", (receive(compressed(finished(b"one")), compressed(deflate(b"two"))),), deflate=PLAIN),
    "windows-are-not-policed": Case("client", (receive(*too_far()),), deflate=Deflate(remote_bits=9)),
    # A literal without the code that ends its block; the bytes that a sender removes end it, and begin another.
    "idle-forgets": Case(
        "client",
        (receive(compressed(b"\x4a\x04")), ("idle",), receive(compressed(deflate(b"fresh")))),
        deflate=PLAIN,
    ),
    "inside-a-block": Case("client", (receive(compressed(b"\x00\x0a\x00\xf5\xffcut")),), deflate=PLAIN),
    "first-fault-counts": Case("client", (receive(compressed(b"\x00\x01\x00\xfe\xff\xff\x07", TEXT)),), deflate=PLAIN),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_every_decision_makes_a_difference(core: Core, name: str) -> None:
    result = compare(core, EXAMPLES[name])
    assert result.difference == ""
    assert result.decisions == {name}, f"\n{result.ours}\n{result.theirs}"


def test_all_decisions_have_a_case() -> None:
    assert set(EXAMPLES) == set(DECISIONS)


# Differences are found


@pytest.mark.parametrize("field", ["events", "frames", "refused"])
def test_what_differs_is_found(core: Core, field: str) -> None:
    case = Case("server", (receive(frame(PING, b"hi", mask=bytes(4))), ("close", 1006, "")))
    ours, other = core.run(case), core.run(case)
    assert first_difference(ours, other) == ""
    if field == "refused":
        other.steps[1].refused = False
    else:
        getattr(other.steps[0], field).clear()
    assert field in first_difference(ours, other)


@pytest.mark.parametrize(("field", "value"), [("close", 1000), ("sent", 1011), ("received_first", True)])
def test_different_end_is_found(core: Core, field: str, value: object) -> None:
    ours = core.run(Case("server", (("eof",),)))
    assert field in first_difference(ours, dataclasses.replace(ours, **{field: value}))  # type: ignore[arg-type]


def test_shrinking() -> None:
    case = draw("a case with many steps 5")
    needle = b"\x07needle"
    case = case.with_steps([*case.steps, ("receive", b"in a haystack" + needle * 2), ("idle",)])

    def fails(case: Case) -> bool:
        return any(needle in step[1] for step in case.steps if step[0] == "receive")

    assert shrink(case, fails, 20) == Case(case.side, (("receive", needle),))


def test_a_case_is_read_again() -> None:
    for seed in range(50):
        case = draw(str(seed))
        assert Case.load(case.dump()) == case
