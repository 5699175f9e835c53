"""Runs schedules until the time is over or one fails; then makes the failing one small and prints how to repeat it."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable

from . import asyncio_run, threads_run
from .generate import draw
from .plan import Plan
from .settings import Setting, choose
from .shrink import shrink

__all__ = ["PATIENCE", "Failure", "Outcome", "campaign", "execute", "report", "smaller"]

PATIENCE = 8.0
"""Time limit in seconds of every required event: slowness must not look like an endless wait."""

# While a schedule is made small, short time limits suffice. A final run with the full time limit decides.
_SHRINKING_PATIENCE = 1.0


@dataclasses.dataclass
class Failure:
    """A failing schedule.

    Attributes:
        plan: The drawn schedule.
        complaints: The errors.
        smallest: The smallest part of it that fails in the same way.
        smallest_complaints: The errors of that part.
    """

    plan: Plan
    complaints: list[str]
    smallest: Plan
    smallest_complaints: list[str]


@dataclasses.dataclass
class Outcome:
    """The outcome of a campaign.

    Attributes:
        runs: The number of schedules.
        seconds: The duration.
        failure: The first failure, if any.
    """

    runs: int = 0
    seconds: float = 0.0
    failure: Failure | None = None


def execute(plan: Plan, patience: float = PATIENCE) -> list[str]:
    """Runs a schedule; returns the errors."""
    run = threads_run.run if plan.setting.blocking else asyncio_run.run
    return run(plan, patience)


def campaign(
    settings: list[Setting],
    seconds: float,
    seed: int,
    *,
    shrink_seconds: float = 30.0,
    began: Callable[[Plan], None] = lambda plan: None,
    run: Callable[[Plan, float], list[str]] = execute,
) -> Outcome:
    """Runs schedules of consecutive seeds.

    Args:
        settings: The possible settings; each schedule draws one of them.
        seconds: The duration; the schedule that is running then is finished.
        seed: The first one.
        shrink_seconds: Time limit for making a failing one small.
        began: Called before each.
        run: Runs a schedule with a time limit.
    """
    outcome, start = Outcome(), time.monotonic()
    while outcome.failure is None and time.monotonic() - start < seconds:
        number = seed + outcome.runs
        plan = draw(choose(random.Random(number), settings), number)
        began(plan)
        if complaints := run(plan, PATIENCE):
            outcome.failure = smaller(plan, complaints, shrink_seconds, run)
        outcome.runs += 1
    outcome.seconds = time.monotonic() - start
    return outcome


def smaller(
    plan: Plan, complaints: list[str], seconds: float, run: Callable[[Plan, float], list[str]] = execute
) -> Failure:
    """Makes a failing schedule small.

    Args:
        plan: The schedule.
        complaints: Its errors.
        seconds: The time limit.
        run: Runs a schedule with a time limit.
    """
    expected = {kind(complaint) for complaint in complaints}

    def fails(candidate: Plan) -> bool:
        # Threads and timers may need a second attempt.
        for _ in range(3 if plan.options["threaded"] else 2):
            if any(kind(complaint) in expected for complaint in run(candidate, _SHRINKING_PATIENCE)):
                return True
        return False

    smallest = shrink(plan, fails, seconds) if seconds > 0 else plan
    again = run(smallest, PATIENCE) if smallest != plan else complaints
    if not again:
        smallest, again = plan, complaints
    return Failure(plan, complaints, smallest, again)


def kind(complaint: str) -> str:
    """Returns the common part of complaints about the same problem."""
    head = re.split(r"[:,;]", re.sub(r"^connection \d+: ", "", complaint))[0]
    return " ".join(re.sub(r"\d[\d.]*", "#", head).split()[:6])


def report(failure: Failure) -> str:
    """Describes a failure and how to repeat it."""
    plan = failure.plan
    lines = ["", f"FAILED: seed {plan.seed}, setting {plan.setting}", *_indented(failure.complaints), ""]
    if failure.smallest != plan:
        lines += [f"made smaller, {len(plan.steps)} steps to {len(failure.smallest.steps)}:"]
    lines += [str(failure.smallest), *_indented(failure.smallest_complaints), ""]
    lines += [f"again: make liveness SEED={plan.seed} SETTING={plan.setting}"]
    return "\n".join(lines)


def _indented(complaints: list[str]) -> list[str]:
    return ["  - " + complaint.replace("\n", "\n    ") for complaint in complaints]
