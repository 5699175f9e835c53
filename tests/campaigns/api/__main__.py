"""Runs the property-based tests: ``PYTHONPATH=tests python -m campaigns.api``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import faulthandler
import fnmatch
import os
import sys
import time

from .properties import NAMES, attempt, world

# The number of programs drawn from one seed.
_TRIES = 200

# One seed takes some seconds.
_HANG = 300.0


def main() -> int:
    """Runs the tests that the arguments select; returns the exit status: 0, or 1 after a failure."""
    options = _arguments()
    if options.list:
        print("\n".join(NAMES))
        return 0
    names = [name for name in NAMES if any(fnmatch.fnmatch(name, pattern) for pattern in options.name or ["*"])]
    if not names:
        print(f"nothing is called {options.name}: see --list", file=sys.stderr)
        return 2
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]
    counts = dict.fromkeys(names, 0)
    number = options.seed
    end = time.monotonic() + options.seconds
    failures = 0
    with world() as here:
        while time.monotonic() < end and (options.rounds is None or number < options.seed + options.rounds):
            for name in names:
                faulthandler.dump_traceback_later(_HANG, exit=True)
                try:
                    attempt(here, name, _TRIES, number)
                except BaseException as exc:
                    print(f"{type(exc).__name__}: {exc}\n" + "\n".join(getattr(exc, "__notes__", [])), flush=True)
                    print(f"again: python -m campaigns.api --name '{name}' --seed {number} --rounds 1", flush=True)
                    failures += 1
                    if not options.keep_going:
                        return 1
                counts[name] += _TRIES
            number += 1
            left = max(0, end - time.monotonic())
            print(
                f"seed {number - 1}: {sum(counts.values())} programs, {failures} failed, {left:.0f} s left", flush=True
            )
    faulthandler.cancel_dump_traceback_later()
    for name, count in counts.items():
        print(f"{name}: {count} programs")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="api", description="Any calls of the Python API with any values.")
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (60)")
    parser.add_argument("--seed", type=int, default=0, help="the first number by which programs are drawn (0)")
    parser.add_argument("--rounds", type=int, help="how many such numbers, at most")
    parser.add_argument("--name", action="append", help="what to try, or a pattern: see --list; repeatable")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure until the time is over")
    parser.add_argument("--list", action="store_true", help="list what is tried")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
