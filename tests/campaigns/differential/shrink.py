"""Makes a failing case as small as possible in bounded time. The caller decides what fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from campaigns.common import shrinking

from .case import Case, Deflate, Step


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """Returns the smallest case that was found to fail within some seconds."""
    return shrinking.shrink(case, fails, seconds, _options, _joined, _fewer, _shorter)


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
    return map(case.with_steps, shrinking.fewer(case.steps))


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
