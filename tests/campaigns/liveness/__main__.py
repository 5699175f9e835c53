"""Runs random schedules from the command line: ``PYTHONPATH=tests python -m campaigns.liveness``; ``--help`` lists the
options.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from .campaign import PATIENCE, Failure, campaign, execute, report, smaller
from .generate import draw
from .plan import Plan
from .settings import SETTINGS, Setting, matching, named

# A schedule that takes this long hangs where its own time limits do not apply.
_HANG = 90.0


def main() -> int:
    """Runs the schedules that the arguments select; returns the exit status: 0, or 1 after a failure."""
    options = _arguments()
    if options.list:
        print("\n".join(setting.name for setting in SETTINGS))
        return 0
    settings = [setting for pattern in options.setting or ["*"] for setting in matching(pattern)]
    if not settings:
        print(f"no setting is called {options.setting}: see --list", file=sys.stderr)
        return 2
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    with _Watchdog() as watchdog:
        if options.plan is not None or options.seed is not None:
            if options.plan is not None:
                plan = Plan.load(Path(options.plan).read_text())
            else:
                plan = draw(named(options.setting[0]), options.seed)
            return _repeat(plan, options, watchdog)
        return _campaign(settings, options, watchdog)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="liveness", description="Random schedules of calls against a scripted peer.")
    parser.add_argument("--seconds", type=float, default=60, help="how long to run (60)")
    parser.add_argument("--setting", action="append", help="a setting, the beginning of one, or a pattern; repeatable")
    parser.add_argument("--seed", type=int, help="run the schedule of this seed only, in the one setting that is given")
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="the first seed (the time)")
    parser.add_argument("--plan", help="run the schedule of a file, as --write has written it")
    parser.add_argument("--write", help="file for the smallest schedule that fails")
    parser.add_argument("--times", type=int, default=1, help="how often to run one schedule (1)")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to make a schedule small that fails (60)")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure until the time is over")
    parser.add_argument("--list", action="store_true", help="list the settings")
    options = parser.parse_args()
    if options.seed is not None and (not options.setting or options.setting[0] not in {s.name for s in SETTINGS}):
        parser.error("--seed needs --setting with the whole name of one")
    return options


def _repeat(plan: Plan, options: argparse.Namespace, watchdog: _Watchdog) -> int:
    print(plan)
    for number in range(1, options.times + 1):
        watchdog.began(plan)
        start = time.monotonic()
        if complaints := execute(plan, PATIENCE):
            print(f"run {number} FAILED", flush=True)
            watchdog.began(plan)
            return _tell(smaller(plan, complaints, options.shrink), options)
        print(f"run {number} passed in {time.monotonic() - start:.3f} s", flush=True)
    return 0


def _campaign(settings: list[Setting], options: argparse.Namespace, watchdog: _Watchdog) -> int:
    print(f"{len(settings)} settings, seeds from {options.first} on, {options.seconds:.0f} s", flush=True)
    first, failures, runs = options.first, 0, 0
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 0:
        slice_ = min(left, 10.0)
        outcome = campaign(settings, slice_, first, shrink_seconds=options.shrink, began=watchdog.began)
        first += outcome.runs
        runs += outcome.runs
        if outcome.failure is not None:
            failures += 1
            _tell(outcome.failure, options)
            if not options.keep_going:
                return 1
        print(f"{runs} schedules, {failures} failed, {max(0, end - time.monotonic()):.0f} s left", flush=True)
    return 1 if failures else 0


def _tell(failure: Failure, options: argparse.Namespace) -> int:
    print(report(failure), flush=True)
    if options.write is not None:
        Path(options.write).write_text(failure.smallest.dump())
    return 1


class _Watchdog(threading.Thread):
    """Ends the process when a schedule hangs, and prints which one."""

    def __init__(self) -> None:
        super().__init__(name="liveness-watchdog", daemon=True)
        self._over = threading.Event()
        self._plan: Plan | None = None
        self._since = time.monotonic()

    def began(self, plan: Plan) -> None:
        self._plan, self._since = plan, time.monotonic()
        # If the interpreter itself hangs, no thread of Python runs.
        faulthandler.dump_traceback_later(_HANG + 20, exit=True)

    def run(self) -> None:
        while not self._over.wait(1):
            if time.monotonic() - self._since > _HANG and self._plan is not None:
                print(f"HANGS: seed {self._plan.seed}, setting {self._plan.setting}\n{self._plan}", file=sys.stderr)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)

    def __enter__(self) -> _Watchdog:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._over.set()
        self.join()


if __name__ == "__main__":
    sys.exit(main())
