"""Happy Eyeballs in simulated time: random networks, and the start times that RFC 8305 allows."""

from __future__ import annotations

import math
import random
import socket
from dataclasses import dataclass, field

import pytest

from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the modules are ours")

if IS_WIRESPEED:
    from wirespeed._net.addresses import Address, Race


def address(number: int) -> Address:
    return Address(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, (f"192.0.2.{number}", 80))


@dataclass
class Course:
    """The outcome of a race."""

    starts: list[tuple[Address, float]] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    winner: Address | None = None
    end: float = math.inf


def run(outcomes: dict[Address, tuple[bool, float]], delay: float | None) -> Course:
    """Races over a network where an attempt succeeds or fails this long after it began; 0 is within the call."""
    race, course, now = Race(outcomes, delay), Course(), 1000.0
    pending: dict[Address, float] = {}
    while not race.is_lost:
        target = race.next_address(now)
        if target is not None:
            course.starts.append((target, now))
            succeeds, seconds = outcomes[target]
            if seconds:
                pending[target] = now + seconds
                race.started(target, now)
            elif succeeds:
                return finished(course, target, now)
            else:
                course.failures.append(now)
                race.failed(target)
            continue
        now = min([race.due, *pending.values()])
        if now == math.inf:
            return course
        for target in [target for target, time in pending.items() if time == now]:
            del pending[target]
            if outcomes[target][0]:
                return finished(course, target, now)
            course.failures.append(now)
            race.failed(target)
    return finished(course, None, now)


def finished(course: Course, winner: Address | None, now: float) -> Course:
    course.winner, course.end = winner, now
    return course


def check(outcomes: dict[Address, tuple[bool, float]], delay: float | None) -> None:
    course = run(outcomes, delay)
    # In their order, each once.
    assert [target for target, _ in course.starts] == list(outcomes)[: len(course.starts)]
    assert course.starts[0][1] == 1000
    ends = {target: time + outcomes[target][1] for target, time in course.starts}
    for (before, then), (_, now) in zip(course.starts, course.starts[1:], strict=False):
        # Attempts in progress when the previous one began, including the previous one.
        failed = [end for target, end in ends.items() if not outcomes[target][0] and then <= end]
        failed = [end for end in failed if end > then or end == ends[before]]
        assert now == min([math.inf if delay is None else then + delay, *failed])
    successes = [(ends[target], target) for target, _ in course.starts if outcomes[target][0]]
    if course.winner is not None:
        assert course.end == ends[course.winner] == min(end for end, _ in successes)
    else:
        # An attempt that was not started waits for a silent one.
        assert not any(end < math.inf for end, _ in successes)
        assert course.end == (math.inf if math.inf in ends.values() else max(course.failures))
        if delay is not None:
            assert len(course.starts) == len(outcomes)


@pytest.mark.parametrize("delay", [None, 0.25, 3.0])
def test_random_networks(delay: float | None) -> None:
    for seed in range(3000):
        source = random.Random(seed)
        # Exact multiples, so that events happen at the same moment.
        times = [0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 8.0, math.inf]
        outcomes = {
            address(number): (source.random() < 0.3, source.choice(times)) for number in range(source.randint(1, 6))
        }
        try:
            check(outcomes, delay)
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {outcomes}") from exc


def test_next_after_the_delay() -> None:
    race = Race([address(1), address(2)], 0.25)
    assert race.next_address(5) == address(1)
    race.started(address(1), 5.5)
    # From the start of the attempt.
    assert race.due == 5.75
    assert race.next_address(5.74) is None
    assert race.next_address(5.75) == address(2)
    race.started(address(2), 5.75)
    assert race.due == math.inf


def test_two_failures_start_one() -> None:
    race = Race(map(address, range(4)), 1)
    for number in range(2):
        assert race.next_address(number) == address(number)
        race.started(address(number), number)
    race.failed(address(0))
    race.failed(address(1))
    assert race.next_address(1) == address(2)
    race.started(address(2), 1)
    assert race.next_address(1.5) is None


def test_lost_with_the_last() -> None:
    race = Race([address(1), address(2)], None)
    for number in (1, 2):
        assert not race.is_lost
        assert race.next_address(0) == address(number)
        race.started(address(number), 0)
        assert (race.due, race.is_lost) == (math.inf, False)
        race.failed(address(number))
    assert race.is_lost
    assert race.next_address(9) is None
