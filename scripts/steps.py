"""Runs the steps of a check, some beside others, and prints how long each took.

A step is one command. Steps of the same lane run one after the other, lanes run beside each other, and a step starts
when the steps that it needs have passed. Every step writes its output to a file; when a step ends, its result and the
end of its output are printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["SKIPPED", "Outcome", "Step", "run_steps", "table"]

ROOT = Path(__file__).resolve().parents[1]

# Exit status of a command that cannot run here: a tool or a permission is missing.
SKIPPED = 77

# Lines of output that are printed of a step that has passed, and of one that has failed.
SHOWN_PASSED = 4
SHOWN_FAILED = 80


@dataclasses.dataclass(frozen=True)
class Step:
    """One command of a check.

    Args:
        name: The name of the step, in the table and of its log file.
        command: The command; it runs in the root of the project.
        lane: Steps of the same lane run one after the other.
        needs: Names of the steps that must have passed before.
        after: Names of the steps that must have ended before.
        limit: Seconds after which the step is stopped and has failed.
        result: A pattern. The first group of its last match in the output is the result in the table.
        nice: Added to the niceness of the command: steps of 10 or more yield the processors to other lanes.
        tail: How many of the last lines of output are printed when the step has passed.
    """

    name: str
    command: Sequence[str]
    lane: str = "main"
    needs: Sequence[str] = ()
    after: Sequence[str] = ()
    limit: float = 1800
    result: str = ""
    nice: int = 0
    tail: int = SHOWN_PASSED


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Args:
        step: The step.
        status: ``"passed"``, ``"failed"``, ``"skipped"`` or ``"not run"``.
        result: What the pattern of the step found in the output, or the reason why the step has not passed.
        start: Seconds between the start of the run and the start of the step.
        seconds: How long it ran.
    """

    step: Step
    status: str
    result: str
    start: float
    seconds: float


def run_steps(steps: Sequence[Step], logs: Path, environment: Mapping[str, str] | None = None) -> list[Outcome]:
    """Run steps and print their results as they end; return how each ended, in the order of the steps.

    Ctrl-C and SIGTERM stop the commands and raise KeyboardInterrupt.

    Args:
        steps: The steps. A step may need only steps that stand before it.
        logs: Folder for the output, ``NAME.log`` for each step; it is made.
        environment: Variables for the commands, beside those of this process.
    """
    return _Run(steps, logs, {**os.environ, **(environment or {})}).execute()


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with the minutes of every step."""
    width = max(len(outcome.step.name) for outcome in outcomes)
    lines = [f"{'step':{width}}  start    min  status   result"]
    for outcome in outcomes:
        minutes = f"{outcome.start / 60:5.1f}  {outcome.seconds / 60:5.1f}"
        lines.append(f"{outcome.step.name:{width}}  {minutes}  {outcome.status:7}  {outcome.result}".rstrip())
    return "\n".join(lines)


class _Run:
    def __init__(self, steps: Sequence[Step], logs: Path, environment: Mapping[str, str]) -> None:
        self.steps = steps
        self.logs = logs.resolve()
        self.environment = environment
        self.begun = time.monotonic()
        self.ended = {step.name: threading.Event() for step in steps}
        self.outcomes: dict[str, Outcome] = {}
        self.children: set[subprocess.Popen[bytes]] = set()
        self.stopping = False
        self.errors: list[BaseException] = []
        self.lock = threading.Lock()

    def execute(self) -> list[Outcome]:
        self.logs.mkdir(parents=True, exist_ok=True)
        lanes = dict.fromkeys(step.lane for step in self.steps)
        threads = [threading.Thread(target=self._run_lane, args=(lane,), daemon=True) for lane in lanes]
        before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.errors:
            raise self.errors[0]
        return [self.outcomes[step.name] for step in self.steps]

    def _stop(self) -> None:
        with self.lock:
            self.stopping = True
            for child in self.children:
                _kill(child)

    def _run_lane(self, lane: str) -> None:
        try:
            self._run_steps(lane)
        except BaseException as exc:  # other lanes wait for steps of this one
            self.errors.append(exc)
            self._stop()
            for event in self.ended.values():
                event.set()

    def _run_steps(self, lane: str) -> None:
        for step in self.steps:
            if step.lane != lane:
                continue
            for name in (*step.needs, *(name for name in step.after if name in self.ended)):
                self.ended[name].wait()
            bad = [name for name in step.needs if self.outcomes[name].status != "passed"]
            start = time.monotonic() - self.begun
            if bad:
                outcome = Outcome(step, "not run", f"needs {', '.join(bad)}", start, 0.0)
            else:
                outcome = self._run_step(step, start)
            self._record(outcome)

    def _record(self, outcome: Outcome) -> None:
        step = outcome.step
        log = self.logs / f"{step.name}.log"
        text = log.read_text(errors="replace") if outcome.status != "not run" else ""
        count = step.tail if outcome.status == "passed" else SHOWN_FAILED
        shown = text.splitlines()[-count:] if count else []
        with self.lock:
            self.outcomes[step.name] = outcome
            left = len(self.steps) - len(self.outcomes)
            print(
                f"[{len(self.outcomes)}/{len(self.steps)}] {step.name}: {outcome.status} after"
                f" {outcome.seconds:.0f} s; {left} to go. {outcome.result}".rstrip(),
                *(f"    {line}" for line in shown),
                sep="\n",
                flush=True,
            )
        self.ended[step.name].set()

    def _run_step(self, step: Step, start: float) -> Outcome:
        log = self.logs / f"{step.name}.log"
        begun = time.monotonic()
        with log.open("wb") as out, self.lock:
            if self.stopping:
                return Outcome(step, "not run", "stopped", start, 0.0)
            print(f"... {step.name}: {' '.join(step.command)} (output: {log})", flush=True)
            child = subprocess.Popen(
                ["nice", "-n", str(step.nice), *step.command],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.children.add(child)
        _lower_session(child.pid, step.nice)
        try:
            status: int | None = child.wait(step.limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Processes that the command has started and left running are killed as well.
            _kill(child)
            child.wait()
            with self.lock:
                self.children.discard(child)
        seconds = time.monotonic() - begun
        text = log.read_text(errors="replace")
        if status is None:
            return Outcome(step, "failed", f"stopped after {step.limit:.0f} s", start, seconds)
        if status == SKIPPED:
            reason = text.strip().splitlines()[-1] if text.strip() else "no reason given"
            return Outcome(step, "skipped", reason, start, seconds)
        if status != 0:
            return Outcome(step, "failed", f"exit status {status}, see {log}", start, seconds)
        found = re.findall(step.result, text) if step.result else [""]
        if not found:
            # A command that ran no test may also exit with success.
            return Outcome(step, "failed", f"no result in its output, see {log}", start, seconds)
        return Outcome(step, "passed", found[-1].strip(), start, seconds)


def _lower_session(pid: int, nice: int) -> None:
    """Sets the niceness of a session, among which Linux may share the processors equally (sched(7), autogroup)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kills a running command with all its descendants, including those in other sessions, or its remaining
    descendants.
    """
    pids = [child.pid] if child.returncode is None else []
    for pid in pids:
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                pids += map(int, path.read_text().split())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for pid in pids[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
