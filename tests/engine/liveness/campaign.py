"""Runs schedules until the time is over or one fails; then makes the failing one small."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable

from .plan import Plan, draw
from .run import PATIENCE, execute

__all__ = ["Failure", "Outcome", "campaign", "execute", "report", "shrink"]

# While a schedule is made small, hanging calls have shorter time limits.
_SHORT = 4.0
_TRIES = 4


@dataclasses.dataclass
class Failure:
    """A failing schedule, its error, and the smallest part of it that fails in the same way."""

    plan: Plan
    complaints: list[str]
    smallest: Plan


@dataclasses.dataclass
class Outcome:
    """The number of schedules, and the first one that failed."""

    runs: int = 0
    failure: Failure | None = None


def campaign(
    seconds: float, seed: int, *, shrinking: float = 30.0, began: Callable[[Plan], None] = lambda plan: None
) -> Outcome:
    """Runs the schedules of consecutive seeds, beginning with this one."""
    outcome, end = Outcome(), time.monotonic() + seconds
    while outcome.failure is None and time.monotonic() < end:
        plan = draw(seed + outcome.runs)
        began(plan)
        if complaints := execute(plan):
            outcome.failure = Failure(plan, complaints, shrink(plan, complaints, shrinking))
        outcome.runs += 1
    return outcome


def _kind(complaint: str) -> str:
    return " ".join(re.sub(r"\d+", "#", complaint).split()[:4])


def shrink(plan: Plan, complaints: list[str], seconds: float) -> Plan:
    """Leaves out steps while the rest fails in the same way; each reduction may need several attempts."""
    kinds = {_kind(complaint) for complaint in complaints}
    end = time.monotonic() + seconds

    def fails(candidate: Plan) -> bool:
        for _ in range(_TRIES):
            if any(_kind(complaint) in kinds for complaint in execute(candidate, _SHORT)):
                return True
            if time.monotonic() > end:
                break
        return False

    size = max(1, len(plan.steps) // 2)
    while time.monotonic() < end:
        starts = list(range(0, len(plan.steps), size))
        random.Random(size).shuffle(starts)
        for start in starts:
            if time.monotonic() > end:
                break
            candidate = dataclasses.replace(plan, steps=plan.steps[:start] + plan.steps[start + size :])
            if len(candidate.steps) < len(plan.steps) and fails(candidate):
                plan = candidate
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return plan


def report(failure: Failure) -> str:
    """Describes a failure, and how to repeat it."""
    complaints = [f"  - {complaint}" for complaint in failure.complaints[:20]]
    lines = ["", f"FAILED: seed {failure.plan.seed}", *complaints, ""]
    lines += [f"of its {len(failure.plan.steps)} steps, these are enough:", str(failure.smallest), ""]
    lines += [f"again: make liveness-engine SEED={failure.plan.seed}"]
    return "\n".join(lines)


assert PATIENCE > _SHORT
