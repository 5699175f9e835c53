"""Makes a failing schedule as small as possible in bounded time. It knows no connection: the caller decides
what fails.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from .plan import Plan, Step
from .settings import SETTINGS, Setting

__all__ = ["shrink"]


def shrink(plan: Plan, fails: Callable[[Plan], bool], seconds: float, *, settings: bool = True) -> Plan:
    """Returns the smallest schedule that was found to fail.

    Args:
        plan: A failing schedule.
        fails: Runs a schedule and returns whether it fails, in the same way.
        seconds: The time limit; the run that is in progress then is finished.
        settings: Whether the setting may become a simpler one, too.
    """
    return _Shrinker(fails, time.monotonic() + seconds).shrink(plan, settings=settings)


class _Shrinker:
    def __init__(self, fails: Callable[[Plan], bool], deadline: float) -> None:
        self.fails = fails
        self.deadline = deadline

    def shrink(self, plan: Plan, *, settings: bool) -> Plan:
        before = None
        while plan != before and not self.over:
            before = plan
            plan = self._drop_steps(plan)
            plan = self._first(plan, self._simpler_options)
            if settings:
                plan = self._first(plan, self._simpler_settings)
            plan = self._simplify_steps(plan)
        return plan

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def _drop_steps(self, plan: Plan) -> Plan:
        """Drops halves, quarters and so on, at last single steps: delta debugging."""
        size = max(1, len(plan.steps) // 2)
        while not self.over:
            at = 0
            while at < len(plan.steps) and not self.over:
                candidate = plan.with_steps(plan.steps[:at] + plan.steps[at + size :])
                if self.fails(candidate):
                    plan = candidate
                else:
                    at += size
            if size == 1:
                break
            size //= 2
        return plan

    def _first(self, plan: Plan, simpler: Callable[[Plan], Iterator[Plan]]) -> Plan:
        """Takes each simplification that still fails."""
        tried = True
        while tried and not self.over:
            tried = False
            for candidate in simpler(plan):
                if self.over:
                    break
                if candidate != plan and self.fails(candidate):
                    plan, tried = candidate, True
                    break
        return plan

    @staticmethod
    def _simpler_options(plan: Plan) -> Iterator[Plan]:
        simple: dict[str, Any] = {"threaded": plan.setting.blocking, "ping_interval": None, "end": "close", "links": 1}
        for name, value in simple.items():
            if plan.options.get(name, value) == value:
                continue
            candidate = plan.with_option(name, value)
            if name == "links":
                candidate = candidate.with_steps(dataclasses.replace(step, link=0) for step in plan.steps)
            yield candidate

    @staticmethod
    def _simpler_settings(plan: Plan) -> Iterator[Plan]:
        simple: dict[str, Any] = {
            "tls": "plain",
            "deflate": False,
            "dropin": False,
            "role": "client",
            "io_backend": "fd",
        }
        if not plan.setting.blocking:
            simple["loop"] = "asyncio"
        else:
            del simple["io_backend"]
        for name, value in simple.items():
            setting: Setting = dataclasses.replace(plan.setting, **{name: value})
            if setting in SETTINGS and not (setting.role == "client" and plan.options["links"] > 1):
                yield dataclasses.replace(plan, setting=setting)

    def _simplify_steps(self, plan: Plan) -> Plan:
        for at in range(len(plan.steps)):
            for simpler in _simpler_steps(plan.steps[at]):
                if self.over:
                    return plan
                candidate = plan.with_steps([*plan.steps[:at], simpler, *plan.steps[at + 1 :]])
                if simpler != plan.steps[at] and self.fails(candidate):
                    plan = candidate
        return plan


def _simpler_steps(step: Step) -> Iterator[Step]:
    for name in ("before", "timeout", "compress"):
        if step.get(name) is not None:
            yield step.without(name)
    if step.get("turns"):
        yield dataclasses.replace(step, more=(*step.without("turns").more, ("turns", 0)))
    if len(sizes := step.get("sizes", ())) > 1:
        yield dataclasses.replace(step, more=(("sizes", sizes[:1]), *step.without("sizes").more))
