"""Runs a short form of every check of the library, and prints one table. ``--help`` describes the options.

Each part is a command that can be run by itself for longer; the table has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from steps import ROOT, Outcome, Step, run_steps

PYTHON = sys.executable


@dataclasses.dataclass(frozen=True)
class Part:
    """A proof of the library.

    Args:
        name: The name of the part, for ``--only``.
        proves: The faults that it would find.
        command: The command; it can import the helpers of the tests.
        limit: Seconds after which it has failed.
        result: A pattern; the group of its last match in the output goes into the table.
        longer: The command for a longer run.
    """

    name: str
    proves: str
    command: Sequence[str]
    limit: float
    result: str
    longer: str

    def step(self) -> Step:
        """Return the part as a step of a run."""
        return Step(self.name, self.command, limit=self.limit, result=self.result, tail=0)


def pytest(*arguments: str) -> list[str]:
    return [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadfile", *arguments]


PASSED = r"((?:\d+ failed, )?\d+ passed[^\n]*?)(?: in [^\n]*)?\n"


def module(name: str, *arguments: str) -> list[str]:
    return [PYTHON, "-m", name, *arguments]


PARTS = [
    Part(
        "conformance",
        "what the Autobahn suite takes amiss, of 38 ends",
        [PYTHON, "conformance/run.py", "--cases", "quick", "--jobs", "4"],
        600,
        r"\[(\d+/\d+), ",
        "make conformance",
    ),
    Part(
        "differential",
        "undecided differences from websockets and wsproto",
        module("campaigns.differential", "--seconds", "60"),
        300,
        r"([^\n]+)\n*$",
        "make differential SECONDS=3600",
    ),
    Part(
        "fuzz",
        "bytes that break a parser or its oracle",
        [
            *("env", "FUZZ_SECONDS=3", "cargo", "test", "--profile", "quick", "--quiet", "-p", "wirespeed-fuzz"),
            *("--test", "replay", "--", "--nocapture"),
        ],
        600,
        r"fuzz: ([^\n]+)\n",
        "make fuzz FUZZ_SECONDS=3600",
    ),
    Part(
        "api",
        "values and calls from which Python code gets what is not documented",
        module("campaigns.api", "--seconds", "45"),
        300,
        r"([^\n]+)\n*$",
        "make fuzz-api SECONDS=3600",
    ),
    Part(
        "faults",
        "what hangs, leaks or loses messages when networks, peers and systems fail, and by cancellation",
        pytest("--rotation", "0/1", "tests/campaigns/faults"),
        600,
        PASSED,
        "make faults",
    ),
    Part(
        "attack",
        "attackers that slow honest clients down, or exceed the bound",
        pytest("--rotation", "0/1", "tests/campaigns/attack"),
        400,
        PASSED,
        "make attack",
    ),
    Part(
        "panics",
        "panics that cost more than one connection",
        ["scripts/panics.sh"],
        600,
        PASSED,
        "make panics",
    ),
    Part(
        "liveness",
        "calls that hang, on random schedules",
        module("campaigns.liveness", "--seconds", "30"),
        200,
        r"([^\n]+)\n*$",
        "make liveness SECONDS=3600",
    ),
    Part(
        "liveness-engine",
        "the same of the engine",
        module("engine.liveness", "--seconds", "30"),
        200,
        r"([^\n]+)\n*$",
        "make liveness-engine SECONDS=3600",
    ),
    Part(
        "soak",
        "memory, descriptors, threads, tasks, objects or latencies that grow",
        module("campaigns.soak", "--minutes", "3", "--out", "build/trust/soak"),
        400,
        r"(\d+ replies and \d+ openings)",
        "make soak MIN=30",
    ),
    Part(
        "miri",
        "undefined behaviour in what the protocol does with memory",
        ["scripts/sanitize.sh", "miri", "mask"],
        400,
        r"(miri: [^\n]*)",
        "make sanitize",
    ),
]


def table(parts: Sequence[Part], outcomes: Sequence[Outcome]) -> str:
    """Return a table in Markdown of what each part would find and what it found."""
    lines = ["| | would find | | result | took | longer run |", "|---|---|---|---|---|---|"]
    for part, outcome in zip(parts, outcomes, strict=True):
        row = [part.name, part.proves, outcome.status, outcome.result, f"{outcome.seconds:.0f} s", f"`{part.longer}`"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; return 0 if all have passed, 1 if one has failed or could not run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="names or patterns of parts")
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "trust", help="folder of the logs (%(default)s)")
    parser.add_argument("--allow-skipped", action="store_true", help="succeed although parts cannot run here")
    options = parser.parse_args(arguments)
    parts = [part for part in PARTS if any(fnmatch.fnmatch(part.name, pattern) for pattern in options.only)]
    if not parts:
        parser.error(f"no part is called {' '.join(options.only)}: --list shows all")
    if options.list:
        for part in parts:
            print(f"{part.name:16} {part.proves}; longer: {part.longer}")
        return 0
    environment = {
        "PYTHONPATH": str(ROOT / "tests"),
        "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
    }
    outcomes = run_steps([part.step() for part in parts], options.logs, environment)
    print(f"\n{table(parts, outcomes)}\n\n{sum(outcome.seconds for outcome in outcomes) / 60:.1f} minutes")
    skipped = [outcome.step.name for outcome in outcomes if outcome.status == "skipped"]
    if skipped and not options.allow_skipped:
        print(f"not proven here: {', '.join(skipped)} (--allow-skipped: no failure)")
    failed = any(outcome.status == "failed" for outcome in outcomes)
    return int(failed or (bool(skipped) and not options.allow_skipped))


if __name__ == "__main__":
    sys.exit(main())
