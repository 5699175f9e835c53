"""Random schedules on the engine: ``PYTHONPATH=tests python -m engine.liveness``; ``--help`` lists the options."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path

from .campaign import campaign, execute, report
from .plan import Plan, draw

# A schedule that takes this long hangs where its own time limits do not apply.
_HANG = 120.0


def main() -> int:
    """Runs the schedules that the arguments select; returns the exit status: 0, or 1 after a failure."""
    parser = argparse.ArgumentParser(prog="liveness", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long to run (60)")
    parser.add_argument("--seed", type=int, help="run the schedule of this seed only")
    parser.add_argument("--plan", help="run the schedule of a file, as --write has written it")
    parser.add_argument("--write", help="file for the smallest schedule that fails")
    parser.add_argument("--times", type=int, default=1, help="how often to run one schedule (1)")
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="the first seed (the time)")
    parser.add_argument("--shrink", type=float, default=60, help="seconds to make a schedule small that fails (60)")
    options = parser.parse_args()

    def began(plan: Plan) -> None:
        faulthandler.dump_traceback_later(_HANG, exit=True)

    if options.seed is not None or options.plan:
        plan = Plan.load(Path(options.plan).read_text()) if options.plan else draw(options.seed or 0)
        print(plan)
        for number in range(1, options.times + 1):
            began(plan)
            if complaints := execute(plan):
                print(f"run {number} FAILED", *complaints, sep="\n  - ", flush=True)
                return 1
        print(f"{options.times} runs passed")
        return 0
    first, runs, end = options.first, 0, time.monotonic() + options.seconds
    print(f"seeds from {first} on, {options.seconds:.0f} s", flush=True)
    while (left := end - time.monotonic()) > 0:
        outcome = campaign(min(left, 20.0), first + runs, shrinking=options.shrink, began=began)
        runs += outcome.runs
        if outcome.failure is not None:
            faulthandler.cancel_dump_traceback_later()
            print(report(outcome.failure), flush=True)
            if options.write:
                Path(options.write).write_text(outcome.failure.smallest.dump())
            return 1
        print(f"{runs} schedules, {resident():.0f} MiB", flush=True)
    return 0


def resident() -> float:
    """Returns the memory of the process, in MiB."""
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * 4096 / 2**20


if __name__ == "__main__":
    sys.exit(main())
