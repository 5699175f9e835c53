"""Makes a failing schedule as small as possible in bounded time. It knows no connection: the caller decides
what fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from campaigns.common import shrinking

from .plan import Plan, Step
from .settings import SETTINGS, Setting


def shrink(plan: Plan, fails: Callable[[Plan], bool], seconds: float) -> Plan:
    """Returns the smallest schedule that was found to fail, possibly in a simpler setting.

    Args:
        plan: A failing schedule.
        fails: Runs a schedule and returns whether it fails, in the same way.
        seconds: The time limit; the run that is in progress then is finished.
    """
    simpler = _fewer_steps, _simpler_options, _simpler_settings, _simplify_steps
    return shrinking.shrink(plan, fails, seconds, *simpler)


def _fewer_steps(plan: Plan) -> Iterator[Plan]:
    return map(plan.with_steps, shrinking.fewer(plan.steps))


def _simpler_options(plan: Plan) -> Iterator[Plan]:
    simple: dict[str, Any] = {"threaded": plan.setting.blocking, "ping_interval": None, "end": "close", "links": 1}
    for name, value in simple.items():
        if plan.options.get(name, value) == value:
            continue
        candidate = plan.with_option(name, value)
        if name == "links":
            candidate = candidate.with_steps(dataclasses.replace(step, link=0) for step in plan.steps)
        yield candidate


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


def _simplify_steps(plan: Plan) -> Iterator[Plan]:
    for at, step in enumerate(plan.steps):
        for simpler in _simpler_steps(step):
            yield plan.with_steps([*plan.steps[:at], simpler, *plan.steps[at + 1 :]])


def _simpler_steps(step: Step) -> Iterator[Step]:
    for name in ("before", "timeout", "compress"):
        if step.get(name) is not None:
            yield step.without(name)
    if step.get("turns"):
        yield dataclasses.replace(step, more=(*step.without("turns").more, ("turns", 0)))
    if len(sizes := step.get("sizes", ())) > 1:
        yield dataclasses.replace(step, more=(("sizes", sizes[:1]), *step.without("sizes").more))
