"""Cancels an awaitable at one of its suspension points: each in turn, early and late.

*Early* is while it waits: the task is cancelled as soon as it is suspended for the n-th time. *Late* is when the
awaited event has occurred: the n-th wake-up brings the cancellation instead, as for a task that is cancelled when its
future is done, but has not run yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Literal

import wirespeed
from support import asyncio_tools
from support.asyncio_tools import Setting
from support.checks import no_leaks
from support.load_scaling import load_scaled

# No call here is suspended this often.
MOST = 400

# The number of runs without a suspension after which that is accepted.
AGAIN = 9

Make = Callable[[], Awaitable[Any]]

When = Literal["early", "late"]


class _Stepper:
    """Awaits an awaitable, and is cancelled at a point."""

    def __init__(self, awaitable: Awaitable[Any], point: int, when: When) -> None:
        self.awaitable = awaitable
        self.point = point
        self.when = when
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self.awaitable.__await__()
        task = asyncio.current_task()
        assert task is not None
        resume: Callable[[Any], Any] = inner.send
        value: Any = None
        while True:
            try:
                waited_for = resume(value)
            except StopIteration as stop:
                return stop.value
            self.steps += 1
            here = self.steps == self.point
            if here and self.when == "early":
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield waited_for
            except BaseException as exc:
                resume, value = inner.throw, exc
            else:
                resume, value = inner.send, None
                if here and self.when == "late":
                    resume, value = inner.throw, asyncio.CancelledError()


@dataclasses.dataclass
class Outcome:
    """The outcome of an awaitable.

    Attributes:
        reached: Whether it came to the point at all.
        begun: Whether its first step was made.
        cancelled: Whether it ended by being cancelled.
        result: Its result otherwise.
        error: Its exception otherwise.
    """

    reached: bool
    begun: bool
    cancelled: bool = False
    result: Any = None
    error: BaseException | None = None


async def cancel_at(make: Callable[[], Awaitable[Any]], point: int, when: When) -> Outcome:
    """Awaits the result of ``make`` in a task of its own, which is cancelled at a point; 0 is before its first step."""
    stepper: _Stepper | None = None

    async def run() -> Any:
        nonlocal stepper
        stepper = _Stepper(make(), point, when)
        return await stepper

    task = asyncio.ensure_future(run())
    if point == 0:
        task.cancel()
    await asyncio.wait([task])
    reached = point == 0 or (stepper is not None and stepper.steps >= point)
    if task.cancelled():
        return Outcome(reached, point > 0, cancelled=True)
    if (error := task.exception()) is not None:
        return Outcome(reached, point > 0, error=error)
    return Outcome(reached, point > 0, result=task.result())


# Cancels its argument at the point of the run, and returns how it ended.
Cancel = Callable[[Make], Awaitable[Outcome]]


def at_every_point(setting: Setting, when: When, scenario: Callable[[Cancel], Awaitable[Any]]) -> int:
    """Runs a scenario once for each point, until the awaitable ends before the point; returns the number of points."""
    point = again = 0
    while True:
        reached = False

        async def cancel(make: Make, point: int = point) -> Outcome:
            nonlocal reached
            outcome = await cancel_at(make, point, when)
            reached = outcome.reached
            if reached and outcome.error is not None:
                raise outcome.error
            return outcome

        async def main(cancel: Cancel = cancel) -> None:
            await asyncio.wait_for(scenario(cancel), load_scaled(20))

        with no_leaks():
            asyncio_tools.run(main, loop=setting.loop, timeout=40)
        if not reached and point == 1 and again < AGAIN:
            # On a busy machine the answer may arrive before the wait.
            again += 1
            continue
        if not reached:
            return point
        point += 1
        assert point < MOST


def points(more_than: int = -1) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a test of a scenario, which runs once for each point.

    Args:
        more_than: The number of points is larger than this.
    """

    def decorate(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        names = [name for name in inspect.signature(scenario).parameters if name != "cancel"]

        def test(setting: Setting, when: When, **fixtures: Any) -> None:
            given = {**fixtures, "setting": setting} if "setting" in names else fixtures
            assert at_every_point(setting, when, lambda cancel: scenario(cancel, **given)) > more_than

        functools.update_wrapper(test, scenario)
        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look for fixtures there
        parameters = dict.fromkeys(["setting", "when", *names])
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        test.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])  # type: ignore[attr-defined]
        return test

    return decorate


def connecting(setting: Setting, uri: str, **options: Any) -> Any:
    options = {"io_backend": setting.io_backend, "proxy": None, "ping_interval": None, **options}
    return wirespeed.connect(uri, **options)


async def still_open(ws: Any) -> None:
    """Yields a connection to an echo server and checks that it is still open."""
    await ws.send("still open")
    assert await ws.recv() == "still open"
