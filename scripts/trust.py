"""Run a short form of everything that proves the library, and print one table. ``--help`` tells the rest.

Each part is a command that can be run by itself for longer; the table has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
# Of a command that cannot run here: no tool, no permission.
SKIPPED = 77


@dataclasses.dataclass(frozen=True)
class Part:
    """One of them.

    Args:
        name: What ``--only`` calls it.
        proves: What it would find.
        command: What is run, in the root of the project, with the tests' helpers to be imported.
        limit: Seconds after which it has failed.
        tells: A pattern; what its group matches last in the output goes into the table.
        longer: The command for more of it.
    """

    name: str
    proves: str
    command: Sequence[str]
    limit: float
    tells: str
    longer: str


def pytest(*arguments: str) -> list[str]:
    return [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadfile", *arguments]


PASSED = r"(\d+ passed[^\n]*?)(?: in [^\n]*)?\n"


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
        "differences from websockets and wsproto that nobody decided",
        module("differential", "--seconds", "60"),
        300,
        r"([^\n]+)\n*$",
        "make differential SECONDS=3600",
    ),
    Part(
        "fuzz",
        "bytes that break a parser or its oracle",
        [
            *("env", "FUZZ_SECONDS=3", "cargo", "test", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml"),
            *("--test", "replay", "--", "--nocapture"),
        ],
        600,
        r"fuzz: ([^\n]+)\n",
        "make fuzz FUZZ_SECONDS=3600",
    ),
    Part(
        "api",
        "values and calls from which Python code gets what is not documented",
        module("api", "--seconds", "45"),
        300,
        r"([^\n]+)\n*$",
        "make fuzz-api SECONDS=3600",
    ),
    Part(
        "faults",
        "what hangs, leaks or loses messages when networks, peers and systems fail, and by cancellation",
        pytest("--rotation", "0/1", "tests/faults"),
        600,
        PASSED,
        "make faults",
    ),
    Part(
        "attack",
        "attackers whom honest clients notice, or who take more than the bound",
        pytest("--rotation", "0/1", "tests/attack"),
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
        "calls that wait for ever, on random schedules",
        module("liveness", "--seconds", "30"),
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
        module("soak", "--minutes", "3", "--out", "build/trust/soak"),
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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one of them ended."""

    part: Part
    result: str
    told: str
    seconds: float


def run(part: Part, logs: Path) -> Outcome:
    begun = time.monotonic()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
    }
    log = logs / f"{part.name}.log"
    with log.open("w") as out:
        child = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = child.wait(part.limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            status = None
    text = log.read_text(errors="replace")
    found = re.findall(part.tells, text)
    told = found[-1].strip() if found else ""
    seconds = time.monotonic() - begun
    if status is None:
        return Outcome(part, "FAILED", f"took more than {part.limit:.0f} s: {log}", seconds)
    if status == SKIPPED:
        return Outcome(part, "skipped", text.strip().splitlines()[-1] if text.strip() else "", seconds)
    if status != 0:
        print("\n".join(text.splitlines()[-40:]), file=sys.stderr)
        return Outcome(part, "FAILED", f"status {status}: {log}", seconds)
    if not told:
        # A program that proves nothing may end well, too.
        return Outcome(part, "FAILED", f"it tells nothing of what it did: {log}", seconds)
    return Outcome(part, "ok", told, seconds)


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| | would find | | | took | more of it |", "|---|---|---|---|---|---|"]
    for outcome in outcomes:
        part = outcome.part
        row = [part.name, part.proves, outcome.result, outcome.told, f"{outcome.seconds:.0f} s", f"`{part.longer}`"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; 0: nothing was found, 1: something was, or a part could not run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="names or patterns of parts")
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument(
        "--logs", type=Path, default=ROOT / "build" / "trust", help="where the output goes (%(default)s)"
    )
    parser.add_argument("--allow-skipped", action="store_true", help="succeed though parts cannot run here")
    options = parser.parse_args(arguments)
    parts = [part for part in PARTS if any(fnmatch.fnmatch(part.name, pattern) for pattern in options.only)]
    if options.list:
        for part in parts:
            print(f"{part.name:16} {part.proves}; more: {part.longer}")
        return 0
    options.logs.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, part in enumerate(parts, 1):
        print(f"[{number}/{len(parts)}] {part.name}: {part.proves} ...", flush=True)
        outcomes.append(run(part, options.logs.resolve()))
        print(f"    {outcomes[-1].result}, {outcomes[-1].seconds:.0f} s {outcomes[-1].told}", flush=True)
    print(f"\n{table(outcomes)}\n\n{sum(outcome.seconds for outcome in outcomes) / 60:.1f} minutes")
    skipped = [outcome.part.name for outcome in outcomes if outcome.result == "skipped"]
    if skipped and not options.allow_skipped:
        print(f"not proven here: {', '.join(skipped)} (--allow-skipped: no failure)")
    failed = any(outcome.result == "FAILED" for outcome in outcomes)
    return int(failed or (bool(skipped) and not options.allow_skipped))


if __name__ == "__main__":
    sys.exit(main())
