"""Random frames through our implementation and ``wsproto``: equal events, except for intended differences."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import pytest

from campaigns.differential.case import Case
from campaigns.differential.core import Core, CoreMissing
from campaigns.differential.frames import WSPROTO_DECISIONS, frame_difference, plain, wsproto_events
from campaigns.differential.generate import draw
from campaigns.differential.outcome import Event
from support.frames import close
from support.samples import sample

pytestmark = pytest.mark.wirespeed_only("both are compared here")

CASES = 800


@pytest.fixture(scope="module")
def core() -> Iterator[Core]:
    try:
        core = Core()
    except CoreMissing as exc:
        pytest.skip(str(exc))
    with core:
        yield core


def ours(core: Core, case: Case) -> list[Event]:
    return [event for step in core.run(case).steps for event in step.events]


def test_random_frames(core: Core, rotation: str | None) -> None:
    seeds = sample(range(CASES), 2, rotation)
    seen: collections.Counter[object] = collections.Counter()
    for seed in seeds:
        case = plain(draw(f"frames {seed}"))
        if case is None:
            continue
        events = ours(core, case)
        found, _ = frame_difference(events, *wsproto_events(case))
        assert found == "", f"seed {seed}\n{case}"
        seen.update({event[1] if event[0] == "fault" else event[0] for event in events})
    assert all(seen[kind] > len(seeds) // 160 for kind in ("text", "binary", "ping", "pong", "close", 1002, 1007)), seen


@pytest.mark.parametrize("name", WSPROTO_DECISIONS)
def test_every_decision_makes_a_difference(core: Core, name: str) -> None:
    streams = {"close-code-1014": close(1014), "header-when-complete": b"\x81\x85"}
    case = Case("client", (("receive", streams[name]),))
    assert frame_difference(ours(core, case), *wsproto_events(case)) == ("", name)


def test_what_differs_is_found() -> None:
    events: list[Event] = [("text", b"hello", True)]
    assert frame_difference(events, events, "") == ("", "")
    for other in ([], [("text", b"hello", True), ("fault", 1002)], [("binary", b"hello", True)]):
        assert frame_difference(events, list(other), "for another reason")[0]
