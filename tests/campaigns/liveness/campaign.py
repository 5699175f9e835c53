"""The schedules of connections: in which setting one runs, and how a failing one is made small."""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence

from campaigns.common.schedules import Schedules

from . import asyncio_run, threads_run
from .generate import draw
from .plan import Plan
from .settings import SETTINGS, Setting, choose, matching, named
from .shrink import shrink

PATIENCE = 8.0
"""Time limit in seconds of every required event: slowness must not look like an endless wait."""

# While a schedule is made small, short time limits suffice. A final run with the full time limit decides.
_SHRINKING_PATIENCE = 1.0


def execute(plan: Plan, patience: float = PATIENCE) -> list[str]:
    """Runs a schedule; returns the errors."""
    run = threads_run.run if plan.setting.blocking else asyncio_run.run
    return run(plan, patience)


class Liveness(Schedules[Plan]):
    """Schedules of calls on connections; each draws one of some settings."""

    name = "liveness"
    does = "Random schedules of calls against a scripted peer."
    hang = 90.0

    def __init__(self, settings: Sequence[Setting] = SETTINGS) -> None:
        self.settings = list(settings)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--setting", action="append", help="a setting, its beginning, or a pattern; repeatable")
        parser.add_argument("--list", action="store_true", help="list the settings")

    def configure(self, options: argparse.Namespace) -> str:
        if options.list:
            print("\n".join(setting.name for setting in SETTINGS))
            raise SystemExit(0)
        self.settings = [setting for pattern in options.setting or ["*"] for setting in matching(pattern)]
        if options.seed is not None:
            if not options.setting or options.setting[0] not in {setting.name for setting in SETTINGS}:
                return "--seed needs --setting with the whole name of one"
            self.settings = [named(options.setting[0])]
        return "" if self.settings else f"no setting is called {options.setting}: see --list"

    def draw(self, seed: int) -> Plan:
        return draw(choose(random.Random(seed), self.settings), seed)

    def load(self, text: str) -> Plan:
        return Plan.load(text)

    def dump(self, plan: Plan) -> str:
        return plan.dump()

    def run(self, plan: Plan) -> list[str]:
        return execute(plan)

    def smaller(self, plan: Plan, complaints: list[str], seconds: float) -> tuple[Plan, list[str]]:
        expected = {kind(complaint) for complaint in complaints}

        def fails(candidate: Plan) -> bool:
            # Threads and timers may need a second attempt.
            for _ in range(3 if plan.options["threaded"] else 2):
                if any(kind(complaint) in expected for complaint in execute(candidate, _SHRINKING_PATIENCE)):
                    return True
            return False

        smallest = shrink(plan, fails, seconds) if seconds > 0 else plan
        again = self.run(smallest) if smallest != plan else complaints
        return (smallest, again) if again else (plan, complaints)

    def title(self, plan: Plan) -> str:
        return f"seed {plan.seed}, setting {plan.setting}"

    def again(self, plan: Plan) -> str:
        return f"make liveness SEED={plan.seed} SETTING={plan.setting}"


def kind(complaint: str) -> str:
    """Returns the common part of complaints about the same problem."""
    head = re.split(r"[:,;]", re.sub(r"^connection \d+: ", "", complaint))[0]
    return " ".join(re.sub(r"\d[\d.]*", "#", head).split()[:6])
