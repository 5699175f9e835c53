"""Runs one attack: three processes, measurements, and comparison with the bounds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from campaigns.common.program import Program, Usage
from support.certificates import Certificates
from support.load_scaling import load_scaled

from .calling import OPEN_TIMEOUT
from .knocking import good_token, part
from .table import Row
from .target import SECRET

# Of an echo of an honest client, in the worst hundredth, and of a connection that it opens, until its first echo.
LATE = 0.5
OPENED = 3.0

# Log records for one attack, at most, and memory that may remain, in MiB, for buffer pools.
LINES = 60
LEFT = 32.0

# Resources that a process may have more than before, after the attack.
FEW = 3

# Results of the honest process.
LATENESS = "TimeoutError"

# The maximum time of an answer beyond the requested duration.
LONG = 60.0


class Peak(threading.Thread):
    """The peak usage of a process during the block."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="peak")
        self._pid = pid
        self._over = threading.Event()
        self.descriptors = 0
        self.memory = 0.0

    def __enter__(self) -> Peak:  # noqa: PYI034 - typing.Self needs Python 3.11
        # From here on the high water mark is that of the attack: proc(5).
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        self.start()
        return self

    def run(self) -> None:
        while not self._over.wait(0.02):
            with contextlib.suppress(OSError):
                self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{self._pid}/fd")))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self.join()
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
            self.memory = int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) / 1024


@dataclasses.dataclass
class Figures:
    """Measurements of an attack; times in seconds, memory in MiB."""

    row: str
    kind: str
    p99_before: float | None
    honest: dict[str, Any]
    memory: float
    descriptors: int
    left: Usage
    connections: int
    waiting: int
    panics: int
    lines: int
    errors: list[str]
    tally: dict[str, int]
    seconds: float
    passed: int


def start(name: str, *arguments: str) -> Program:
    return Program(name, f"attack.{name}", *arguments)


class Attacked:
    """A process that is attacked repeatedly, and an honest one beside it.

    Args:
        kind: The kind of process.
        certificates: Of the server.
    """

    def __init__(self, kind: str, certificates: Certificates) -> None:
        self.kind = kind
        self._certificates = certificates
        self._is_client = kind.startswith("client")
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Attacked:  # noqa: PYI034 - typing.Self needs Python 3.11
        with contextlib.ExitStack() as stack:
            files = self._certificates.server_files()
            if self._is_client:
                self.child = stack.enter_context(start("calling", self.kind))
                self.honest = stack.enter_context(start("serving", "asyncio-fd", *files))
                self.ports = self.honest.answer(LONG)["ports"]
                self.child.answer(LONG)
            else:
                arguments = ["serving", self.kind, *files]
                if self.kind.startswith("engine"):
                    arguments = ["engines", self.kind, *files, self._keys()]
                self.child = stack.enter_context(start(*arguments))
                self.honest = stack.enter_context(start("honest"))
                self.ports = self.child.answer(LONG)["ports"]
            # Resources that each port needs itself.
            for port in self.ports:
                self.measure(port, 0.1)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _keys(self) -> str:
        path = self._certificates.folder / "keys.json"

        keys = [{"kty": "oct", "alg": "HS256", "kid": "honest", "k": part(SECRET.encode())}]
        path.write_text(json.dumps({"keys": keys}))
        return str(path)

    def _question(self, port: str, seconds: float) -> dict[str, Any]:
        if self._is_client:
            return {"seconds": seconds, "honest": f"ws://127.0.0.1:{self.ports['plain']}/", "how": "receive"}
        scheme = "wss" if port == "tls" else "ws"
        paths = ("/", "/echo") if self.kind.startswith("engine") else ("/",)
        question: dict[str, Any] = {
            "seconds": seconds,
            "uris": [f"{scheme}://127.0.0.1:{self.ports[port]}{path}" for path in paths],
        }
        if port == "tls":
            question["ca"] = self._certificates.ca_file
        if port in ("guarded", "keyed"):
            question["headers"] = {"Authorization": f"Bearer {good_token('honest' if port == 'keyed' else None)}"}
        if port == "limited":
            # The attacker's address has no free place.
            question["hosts"] = ["127.0.0.2"]
        return question

    def measure(self, port: str, seconds: float, **more: Any) -> dict[str, Any]:
        """Measures the latency of honest traffic for a time."""
        measuring = self.child if self._is_client else self.honest
        measuring.ask({**self._question(port, seconds), **more})
        return measuring.answer(seconds + LONG)

    def _state(self) -> dict[str, Any]:
        if self._is_client:
            return {"connections": 0, **self.measure("plain", 0.0)}
        self.child.ask()
        return self.child.answer(LONG)

    def run(self, row: Row, seconds: float, *, compare: bool = False) -> Figures:
        """Attacks the process for some seconds.

        Args:
            row: The attack.
            seconds: The duration.
            compare: Whether to measure the honest traffic beforehand as well.
        """
        pid = self.child.pid
        before = self.measure(row.port, seconds) if compare else {}
        first = self._state()
        at_first = self.child.usage()
        with contextlib.ExitStack() as stack:
            peak = Peak(pid)
            if row.harm is not None:
                attacker = stack.enter_context(start("hostile", row.slug))
                scheme = "wss" if row.port == "tls" else "ws"
                more = {"hostile": f"{scheme}://127.0.0.1:{attacker.answer(LONG)['port']}/", "how": row.how}
            else:
                attacker = stack.enter_context(start("attacker", row.slug, self.kind, str(self.ports[row.port])))
                attacker.answer(LONG)
                more = {}
            begun = time.monotonic()
            with peak:
                attacker.ask()
                honest = self.measure(row.port, max(seconds, row.lasts), **more)
            passed = self._state().get("passed", 0) - first.get("passed", 0) if row.passes or row.least else 0
            lasted = time.monotonic() - begun
            attacker.ask()
            tally = attacker.answer(LONG)
        answers = [honest] if self._is_client else []
        state, left = self._settle(at_first, answers)
        return Figures(
            row=row.name, kind=self.kind, p99_before=before.get("p99"), honest=honest,
            memory=peak.memory - at_first.memory, descriptors=peak.descriptors - at_first.descriptors, left=left,
            connections=state["connections"], waiting=state.get("events_waiting", 0),
            panics=state.get("panics", 0), lines=sum(one["logged"] for one in answers),
            errors=[error for one in answers for error in one["errors"]], tally=tally,
            seconds=lasted, passed=passed,
        )  # fmt: skip

    def _settle(self, at_first: Usage, answers: list[dict[str, Any]]) -> tuple[dict[str, Any], Usage]:
        """Waits until the usage is as before; returns the usage and the increase; adds the log records."""
        deadline = time.monotonic() + load_scaled(10)
        while True:
            state, now = self._state(), self.child.usage()
            answers.append(state)
            left = Usage(
                now.memory - at_first.memory, now.descriptors - at_first.descriptors, now.threads - at_first.threads
            )
            # Data that arrived before the clients left is handled.
            is_over = not state["connections"] and not state.get("events_waiting")
            is_settled = is_over and left.descriptors <= FEW and left.threads <= FEW
            if (is_settled and left.memory < LEFT) or time.monotonic() > deadline:
                return state, left
            time.sleep(0.05)


def defects(figures: Figures) -> Iterator[str]:
    """Violations that no load of the machine excuses."""
    yield from (f"an honest client: {problem}" for problem in figures.honest["problems"] if LATENESS not in problem)
    yield from (f"logged: {error}" for error in figures.errors)
    if figures.panics:
        yield f"{figures.panics} panics"
    if figures.lines > LINES:
        yield f"{figures.lines} lines were logged"


def complaints(row: Row, figures: Figures) -> Iterator[str]:
    """Exceeded bounds, possibly caused by the load of other programs."""
    honest, tally = figures.honest, figures.tally
    yield from (f"an honest client: {problem}" for problem in honest["problems"] if LATENESS in problem)
    if not honest["count"] or not honest["opened"]:
        yield f"honest clients got nothing: {honest}"
    elif honest["p99"] > load_scaled(LATE) or honest["opened_last"] > load_scaled(OPENED):
        yield f"honest clients had to wait: {honest}"
    if figures.memory > row.memory:
        yield f"{figures.memory:.0f} MiB more, of {row.memory:.0f}"
    if figures.descriptors > row.descriptors:
        yield f"{figures.descriptors} descriptors more, of {row.descriptors}"
    left = figures.left
    if figures.connections or figures.waiting or left.descriptors > FEW or left.threads > FEW or left.memory > LEFT:
        yield f"it does not recover: {figures.connections} connections, {figures.waiting} events, {left}"
    if row.harm is None and tally.get("steps", 0) < 3:
        yield f"the attack did not come about: {tally}"
    if row.harm is not None and tally.get("connections", 0) < 3:
        yield f"the attack did not come about: {tally}"
    yield from (f"nothing was {name}: {tally}" for name in row.meets if not tally.get(name))
    if honest.get("longest_opening", 0) > load_scaled(OPEN_TIMEOUT + 2):
        yield f"an opening took {honest['longest_opening']:.1f} s"
    # The rate limit passes a burst of one second; another second allows for the time of the measurement.
    if row.passes and not 0 < figures.passed <= row.passes * (figures.seconds + 2):
        yield f"{figures.passed} messages got through in {figures.seconds:.1f} s, of {row.passes} a second"
    if row.least and figures.passed < row.least * figures.seconds:
        yield f"only {figures.passed} messages got through in {figures.seconds:.1f} s, of {row.least} a second"
    if row.attempts is not None and honest["attempts"] > row.attempts:
        yield f"{honest['attempts']} attempts, of {row.attempts}"
