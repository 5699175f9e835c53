"""The schedules of engines: how a failing one is made small, and how to repeat it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from campaigns.common.schedules import Schedules
from campaigns.common.shrinking import fewer, shrink

from .plan import Plan, draw
from .run import PATIENCE, execute

# While a schedule is made small, hanging calls have shorter time limits.
_SHORT = 4.0
_TRIES = 4


class EngineLiveness(Schedules[Plan]):
    """Schedules of calls on an engine and its sessions."""

    name = "engine.liveness"
    does = "Random schedules on the engine"

    def draw(self, seed: int) -> Plan:
        return draw(seed)

    def load(self, text: str) -> Plan:
        return Plan.load(text)

    def dump(self, plan: Plan) -> str:
        return plan.dump()

    def run(self, plan: Plan) -> list[str]:
        return execute(plan)

    def smaller(self, plan: Plan, complaints: list[str], seconds: float) -> tuple[Plan, list[str]]:
        """Leaves out steps while the rest fails in the same way; each reduction may need several attempts."""
        kinds = {_kind(complaint) for complaint in complaints}
        found = complaints

        def fails(candidate: Plan) -> bool:
            nonlocal found
            for _ in range(_TRIES):
                again = execute(candidate, _SHORT)
                if any(_kind(complaint) in kinds for complaint in again):
                    found = again
                    return True
            return False

        def simpler(plan: Plan) -> Iterator[Plan]:
            return (dataclasses.replace(plan, steps=tuple(steps)) for steps in fewer(plan.steps))

        return shrink(plan, fails, seconds, simpler), found

    def title(self, plan: Plan) -> str:
        return f"seed {plan.seed}"

    def again(self, plan: Plan) -> str:
        return f"make liveness-engine SEED={plan.seed}"

    def summary(self) -> str:
        return f", {resident():.0f} MiB"


def _kind(complaint: str) -> str:
    return " ".join(re.sub(r"\d+", "#", complaint).split()[:4])


def resident() -> float:
    """Returns the memory of the process, in MiB."""
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * 4096 / 2**20


assert PATIENCE > _SHORT
