"""The runner of random schedules: draws one for each seed, and runs, shrinks, reports and repeats it."""

from __future__ import annotations

import abc
import argparse
import dataclasses
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from .command import arguments

P = TypeVar("P")


@dataclasses.dataclass
class Failure(Generic[P]):
    """A failing schedule.

    Attributes:
        plan: The drawn schedule.
        complaints: The errors.
        smallest: The smallest part of it that was found to fail in the same way.
        smallest_complaints: The errors of that part.
    """

    plan: P
    complaints: list[str]
    smallest: P
    smallest_complaints: list[str]


@dataclasses.dataclass
class Outcome(Generic[P]):
    """The outcome of a campaign: the number of schedules, and the first one that failed, if any."""

    runs: int = 0
    failure: Failure[P] | None = None


class Schedules(abc.ABC, Generic[P]):
    """One kind of schedules.

    Attributes:
        name: The name of the program.
        does: What it does, in a sentence.
        unit: What one schedule is called.
        hang: Seconds after which a schedule hangs where its own time limits do not apply.
    """

    name: str
    does: str
    unit = "schedules"
    hang = 120.0

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments that only this kind has."""

    def configure(self, options: argparse.Namespace) -> str:
        """Uses the arguments; returns why they cannot be used, if so."""
        return ""

    def first(self) -> int:
        """Returns the first seed of a campaign without one."""
        return int(time.time()) * 1000

    @abc.abstractmethod
    def draw(self, seed: int) -> P:
        """Draws the schedule of a seed."""

    def load(self, text: str) -> P:
        """Reads a schedule that ``dump`` has written."""
        raise NotImplementedError

    def dump(self, plan: P) -> str:
        raise NotImplementedError

    @abc.abstractmethod
    def run(self, plan: P) -> list[str]:
        """Runs a schedule; returns the errors."""

    def smaller(self, plan: P, complaints: list[str], seconds: float) -> tuple[P, list[str]]:
        """Returns a smaller schedule that fails in the same way, and its errors."""
        return plan, complaints

    @abc.abstractmethod
    def title(self, plan: P) -> str:
        """Returns the seed and setting of a schedule."""

    @abc.abstractmethod
    def again(self, plan: P) -> str:
        """Returns the command that repeats a schedule."""

    def summary(self) -> str:
        """Returns what a line of progress adds to the numbers."""
        return ""

    def report(self, failure: Failure[P]) -> str:
        """Describes a failure and how to repeat it."""
        lines = ["", f"FAILED: {self.title(failure.plan)}", *_indented(failure.complaints), ""]
        if failure.smallest != failure.plan:
            lines += ["made smaller:"]
        lines += [str(failure.smallest), *_indented(failure.smallest_complaints), ""]
        return "\n".join([*lines, f"again: {self.again(failure.plan)}"])


def _indented(complaints: list[str]) -> list[str]:
    return ["  - " + complaint.replace("\n", "\n    ") for complaint in complaints]


def campaign(
    kind: Schedules[P],
    seconds: float,
    seed: int,
    *,
    shrinking: float = 30.0,
    began: Callable[[P], None] = lambda plan: None,
) -> Outcome[P]:
    """Runs the schedules of consecutive seeds until the time is over or one fails, which is made small.

    Args:
        kind: The kind of schedules.
        seconds: The duration; the schedule that is running then is finished.
        seed: The first one.
        shrinking: Time limit for making a failing one small.
        began: Called before each.
    """
    outcome: Outcome[P] = Outcome()
    end = time.monotonic() + seconds
    while outcome.failure is None and time.monotonic() < end:
        plan = kind.draw(seed + outcome.runs)
        began(plan)
        if complaints := kind.run(plan):
            began(plan)
            outcome.failure = Failure(plan, complaints, *kind.smaller(plan, complaints, shrinking))
        outcome.runs += 1
    return outcome


class _Watchdog(threading.Thread):
    """Ends the process when a schedule hangs, and prints which one."""

    def __init__(self, kind: Schedules[Any]) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._kind = kind
        self._over = threading.Event()
        self._plan: Any = None
        self._since = time.monotonic()

    def began(self, plan: Any) -> None:
        self._plan, self._since = plan, time.monotonic()
        # If the interpreter itself hangs, no thread of Python runs.
        faulthandler.dump_traceback_later(self._kind.hang + 20, exit=True)

    def run(self) -> None:
        while not self._over.wait(1):
            if time.monotonic() - self._since > self._kind.hang and self._plan is not None:
                print(f"HANGS: {self._kind.title(self._plan)}\n{self._plan}", file=sys.stderr)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)

    def __enter__(self) -> _Watchdog:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._over.set()
        self.join()


def main(kind: Schedules[Any]) -> int:
    """Runs the schedules that the command line selects; returns the exit status: 0, or 1 after a failure."""
    options = _arguments(kind)
    with _Watchdog(kind) as watchdog:
        if options.plan is not None or options.seed is not None:
            return _repeat(kind, options, watchdog)
        return _campaign(kind, options, watchdog)


def _arguments(kind: Schedules[Any]) -> argparse.Namespace:
    parser = arguments(kind.name, kind.does)
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure until the time is over")
    parser.add_argument("--seed", type=int, help="run the schedule of this seed only")
    parser.add_argument("--first", type=int, default=kind.first(), help="the first seed (%(default)s)")
    parser.add_argument("--times", type=int, default=1, help="how often to run one schedule (1)")
    parser.add_argument("--plan", help="run the schedule of a file, as --write has written it")
    parser.add_argument("--write", help="file for the smallest schedule that fails")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to make a schedule small that fails (60)")
    kind.add_arguments(parser)
    options = parser.parse_args()
    if problem := kind.configure(options):
        parser.error(problem)
    return options


def _repeat(kind: Schedules[Any], options: argparse.Namespace, watchdog: _Watchdog) -> int:
    plan = kind.draw(options.seed) if options.plan is None else kind.load(Path(options.plan).read_text())
    print(plan)
    for number in range(1, options.times + 1):
        watchdog.began(plan)
        start = time.monotonic()
        if complaints := kind.run(plan):
            print(f"run {number} FAILED", flush=True)
            watchdog.began(plan)
            _print(kind, Failure(plan, complaints, *kind.smaller(plan, complaints, options.shrink)), options)
            return 1
        print(f"run {number} passed in {time.monotonic() - start:.3f} s", flush=True)
    return 0


def _campaign(kind: Schedules[Any], options: argparse.Namespace, watchdog: _Watchdog) -> int:
    print(f"seeds from {options.first} on, {options.seconds:.0f} s", flush=True)
    runs = failures = 0
    for left in _slices(options.seconds):
        outcome = campaign(kind, left, options.first + runs, shrinking=options.shrink, began=watchdog.began)
        runs += outcome.runs
        if outcome.failure is not None:
            failures += 1
            _print(kind, outcome.failure, options)
            if not options.keep_going:
                break
        print(f"{runs} {kind.unit}, {failures} failed{kind.summary()}", flush=True)
    return 1 if failures else 0


def _slices(seconds: float) -> Iterator[float]:
    """Yields times until the seconds are over, each of ten at most, for a line of progress."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        yield min(left, 10.0)


def _print(kind: Schedules[Any], failure: Failure[Any], options: argparse.Namespace) -> None:
    print(kind.report(failure), flush=True)
    if options.write is not None:
        Path(options.write).write_text(kind.dump(failure.smallest))
