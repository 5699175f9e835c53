"""Runs schedules until the time is over or one fails; then makes that one small."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable

from .plan import Plan, draw
from .run import PATIENCE, execute

__all__ = ["Failure", "Outcome", "campaign", "execute", "report", "shrink"]

# While a schedule is made small: what hangs is not waited for as long.
_SHORT = 4.0
_TRIES = 4


@dataclasses.dataclass
class Failure:
    """A schedule that failed, what was wrong, and what is left of it that fails in the same way."""

    plan: Plan
    complaints: list[str]
    smallest: Plan


@dataclasses.dataclass
class Outcome:
    """How many schedules were run, and the first one that failed."""

    runs: int = 0
    failure: Failure | None = None


def campaign(
    seconds: float, seed: int, *, shrinking: float = 30.0, began: Callable[[Plan], None] = lambda plan: None
) -> Outcome:
    """Run the schedules of consecutive seeds, of this one first."""
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
    """Leave out steps for as long as what is left fails in the same way: it may need several tries to."""
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
    """Describe a failure, and how to see it again."""
    complaints = [f"  - {complaint}" for complaint in failure.complaints[:20]]
    lines = ["", f"FAILED: seed {failure.plan.seed}", *complaints, ""]
    lines += [f"of its {len(failure.plan.steps)} steps, these are enough:", str(failure.smallest), ""]
    lines += [f"again: make liveness-engine SEED={failure.plan.seed}"]
    return "\n".join(lines)


assert PATIENCE > _SHORT
