"""Runs schedules until the time is over or one fails; then makes that one small and says how to run it again."""

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
"""Seconds that anything may take which has to happen: to be slow must not look like waiting for ever."""

# While a schedule is made small, nothing else is to be learned from waiting. The last word has a run with all
# patience.
_SHRINKING_PATIENCE = 1.0


@dataclasses.dataclass
class Failure:
    """A schedule that failed.

    Attributes:
        plan: As it was drawn.
        complaints: What was wrong.
        smallest: What was left of it, and fails in the same way.
        smallest_complaints: What is wrong with that.
    """

    plan: Plan
    complaints: list[str]
    smallest: Plan
    smallest_complaints: list[str]


@dataclasses.dataclass
class Outcome:
    """What a campaign has come to.

    Attributes:
        runs: How many schedules were run.
        seconds: How long that took.
        failure: The first one that failed, if any.
    """

    runs: int = 0
    seconds: float = 0.0
    failure: Failure | None = None


def execute(plan: Plan, patience: float = PATIENCE) -> list[str]:
    """Run a schedule; return what was wrong."""
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
    """Run schedules of consecutive seeds.

    Args:
        settings: Where; each schedule draws one of them.
        seconds: How long; the schedule that is running then is finished.
        seed: The first one.
        shrink_seconds: How long to make one small that fails.
        began: Called before each.
        run: What runs a schedule with some patience.
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
    """Make a schedule small that has failed.

    Args:
        plan: The schedule.
        complaints: What was wrong.
        seconds: How long to try.
        run: What runs a schedule with some patience.
    """
    expected = {kind(complaint) for complaint in complaints}

    def fails(candidate: Plan) -> bool:
        # Threads and timers may need a second try.
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
    """Return what is common to complaints about the same thing."""
    head = re.split(r"[:,;]", re.sub(r"^connection \d+: ", "", complaint))[0]
    return " ".join(re.sub(r"\d[\d.]*", "#", head).split()[:6])


def report(failure: Failure) -> str:
    """Describe a failure and how to see it again."""
    plan = failure.plan
    lines = ["", f"FAILED: seed {plan.seed}, setting {plan.setting}", *_indented(failure.complaints), ""]
    if failure.smallest != plan:
        lines += [f"made smaller, {len(plan.steps)} steps to {len(failure.smallest.steps)}:"]
    lines += [str(failure.smallest), *_indented(failure.smallest_complaints), ""]
    lines += [f"again: make liveness SEED={plan.seed} SETTING={plan.setting}"]
    return "\n".join(lines)


def _indented(complaints: list[str]) -> list[str]:
    return ["  - " + complaint.replace("\n", "\n    ") for complaint in complaints]
