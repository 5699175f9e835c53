"""Random schedules, for some seconds: no call waits without end, nothing is lost, doubled, reordered or left behind.

``WIRESPEED_LIVENESS_ENGINE_SECONDS`` is the length of a whole run, of which a run without the option ``--rotation``
takes a third. ``WIRESPEED_LIVENESS_SEED`` is the first seed, by default 1. A failure prints the smallest schedule that
was found, and how to run it again: ``make liveness-engine``.
"""

from __future__ import annotations

import os

import pytest

from campaigns.common.schedules import campaign
from engine.liveness.campaign import EngineLiveness, resident
from engine.liveness.oracle import judge
from engine.liveness.plan import Plan, draw
from engine.liveness.record import Call, Record, Seen, make, read
from support.samples import sample

SECONDS = float(os.environ.get("WIRESPEED_LIVENESS_ENGINE_SECONDS", "20"))
FIRST = int(os.environ.get("WIRESPEED_LIVENESS_SEED", "1"))
SHRINKING = 20.0

# Of all schedules after the first ones, in MiB: their buffers, and memory that the allocator keeps.
GROWTH = 60.0

pytestmark = [
    pytest.mark.wirespeed_only("websockets has no engine"),
    pytest.mark.timeout(SECONDS + SHRINKING + 120),
]


def test_no_call_waits_forever(rotation: str | None) -> None:
    sixtieths = sample(range(60), 3, rotation)
    seed, seconds = (FIRST + sixtieths[0]) * 1000, SECONDS * len(sixtieths) / 60 / 4
    schedules, sizes = EngineLiveness(), list[float]()
    for part in range(4):
        outcome = campaign(schedules, seconds, seed, shrinking=SHRINKING)
        if outcome.failure is not None:
            pytest.fail(schedules.report(outcome.failure), pytrace=False)
        assert outcome.runs, part
        seed += outcome.runs
        sizes.append(resident())
    assert sizes[-1] - sizes[0] < GROWTH, sizes


def test_plan_round_trips_as_json() -> None:
    plan = draw(17)
    assert Plan.load(plan.dump()) == plan == draw(17)
    assert draw(18) != plan
    assert "seed 17" in str(plan)


OPTIONS = {"taker": "thread", "policy": "disconnect", "end": "drain"}


def record(*received: tuple[int, int]) -> Record:
    """Returns a record of one client, to which actor 0 has sent messages 1 to 3, and which has received some."""
    made = Record()
    made.orderly = True
    made.dropped = 0
    made.seen[0] = Seen(0, early=True, received=list(received), close=1001, ended="eof")
    made.calls = [
        Call(0, "send", {"client": 0}, (0, number), result=True, began=number, ended=number) for number in (1, 2, 3)
    ]
    return made


def test_messages_are_checked() -> None:
    for size in (0, 30, 2000):
        assert read(make((3, 7), size, text=True)) == (3, 7)
        assert read(make((3, 7), size, text=False)) == (3, 7)
    with pytest.raises(ValueError, match="another content"):
        read("3.7.30|It was a dark and stormy night")


@pytest.mark.parametrize(
    ("received", "complaint"),
    [
        ([(0, 1), (0, 2), (0, 3)], None),
        ([(0, 2), (0, 1), (0, 3)], "(0, 1) came after (0, 2)"),
        ([(0, 1), (0, 1), (0, 2), (0, 3)], "(0, 1) came after (0, 1)"),
        ([(0, 1), (0, 2), (0, 3), (0, 4)], "(0, 4) came, and was not sent"),
        ([(0, 1), (0, 2)], "1 messages did not arrive, 0 were counted"),
    ],
)
def test_oracle_finds_errors(received: list[tuple[int, int]], complaint: str | None) -> None:
    class Someone:
        is_open = False
        id = 1
        path = "/c/0"

    made = record(*received)
    told = made.tell(Someone())  # type: ignore[arg-type]
    told.connected = 1
    told.disconnected.append((1001, None))
    found = judge(made, OPTIONS)
    if complaint is None:
        assert found == []
    else:
        assert any(complaint in line for line in found), found
    told.disconnected.append((1001, None))
    assert any("told 2 times" in line for line in judge(made, OPTIONS))
