"""Makes a failing case as small as possible in bounded time. The caller decides what fails."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from .case import Case, Deflate, Step

__all__ = ["shrink"]


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """Returns the smallest case that was found to fail.

    Args:
        case: A failing case.
        fails: Runs a case and returns whether it fails.
        seconds: The time limit.
    """
    deadline = time.monotonic() + seconds
    before = None
    while case != before and time.monotonic() < deadline:
        before = case
        for simpler in (_options, _joined, _fewer, _shorter):
            at = 0
            # A successful step changes the next ones: start again from about there.
            while time.monotonic() < deadline:
                for number, candidate in enumerate(simpler(case)):
                    if number >= at and candidate != case and fails(candidate):
                        case, at = candidate, number
                        break
                    if time.monotonic() > deadline:
                        return case
                else:
                    break
    return case


def _options(case: Case) -> Iterator[Case]:
    defaults = {
        "fragments": False,
        "message_size": None,
        "fragment_size": None,
        "most_fragments": None,
        "deflate": None,
    }
    for name, value in defaults.items():
        yield dataclasses.replace(case, **{name: value})  # type: ignore[arg-type]
    if case.deflate is not None:
        for name, value in dataclasses.asdict(Deflate()).items():
            yield dataclasses.replace(case, deflate=dataclasses.replace(case.deflate, **{name: value}))


def _joined(case: Case) -> Iterator[Case]:
    steps = case.steps
    joined: list[Step] = []
    for step in steps:
        if step[0] == "receive" and joined and joined[-1][0] == "receive":
            joined[-1] = ("receive", joined[-1][1] + step[1])
        else:
            joined.append(step)
    yield case.with_steps(joined)
    for at in range(len(steps) - 1):
        if steps[at][0] == steps[at + 1][0] == "receive":
            yield case.with_steps([*steps[:at], ("receive", steps[at][1] + steps[at + 1][1]), *steps[at + 2 :]])


def _fewer(case: Case) -> Iterator[Case]:
    size = max(1, len(case.steps) // 2)
    while size:
        for at in range(0, len(case.steps), size):
            yield case.with_steps([*case.steps[:at], *case.steps[at + size :]])
        size //= 2


def _shorter(case: Case) -> Iterator[Case]:
    for number, step in enumerate(case.steps):
        for at, item in enumerate(step):
            if not isinstance(item, bytes):
                continue
            size = max(1, len(item) // 2)
            while size and item:
                for start in range(0, len(item), size):
                    changed: Step = (*step[:at], item[:start] + item[start + size :], *step[at + 1 :])
                    yield case.with_steps([*case.steps[:number], changed, *case.steps[number + 1 :]])
                size //= 2
            for start in range(len(item)):
                if item[start]:
                    changed = (*step[:at], item[:start] + b"\0" + item[start + 1 :], *step[at + 1 :])
                    yield case.with_steps([*case.steps[:number], changed, *case.steps[number + 1 :]])
