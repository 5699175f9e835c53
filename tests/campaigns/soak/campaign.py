"""Runs the programs of a soak, and samples them from outside and by questions."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import Any

from campaigns.common.program import Program

from .lines import TOLERANCES, Verdict, judge

# Seconds in which programs start and every server answers.
STARTING = 20
# The engine's own echo is measured as a separate server.
PATHS = {"engine-batches": "/echo"}


@dataclasses.dataclass
class Line:
    """A series of figures of one kind, of one program."""

    times: list[float] = dataclasses.field(default_factory=list)
    figures: list[float] = dataclasses.field(default_factory=list)

    def verdict(self, kind: str) -> Verdict:
        return judge(kind, self.times, self.figures)


class Soak:
    """Programs under test, their peers, and their series.

    Args:
        servers: Names of servers, from :data:`soak.servers.SERVERS`.
        clients: Names of clients.
        seed: Of the peers' random actions.

    Attributes:
        lines: By program and kind.
        problems: Errors of any of them, a line each.
    """

    def __init__(self, servers: Iterable[str], clients: Iterable[str], seed: int) -> None:
        self.lines: dict[tuple[str, str], Line] = {}
        self.problems: list[str] = []
        self.stack = contextlib.ExitStack()
        self.tested: list[Program] = []
        self.peers: list[Program] = []
        self.begun = time.monotonic()
        self.replies = self.openings = 0
        self.names = list(servers), list(clients)
        self.seed = seed

    def __enter__(self) -> Soak:  # noqa: PYI034 - typing.Self needs Python 3.11
        servers, clients = self.names
        try:
            programs = [(name, self._start(f"server {name}", "soak.servers", name)) for name in servers]
            self.tested += [program for _, program in programs]
            ports = {name: program.answer()["port"] for name, program in programs}
            where = {f"server {name}": f"{port},{PATHS.get(name, '/')}" for name, port in ports.items()}
            bad = self._start("peer server", "soak.troubles", str(self.seed))
            bad_port = bad.answer()["port"]
            # The clients need an honest server.
            good = self._start("peer echo", "soak.servers", "handlers")
            good_port = good.answer()["port"]
            self.peers += [bad, good]
            self.tested += [
                self._start(f"client {name}", "soak.clients", name, str(self.seed), str(good_port), str(bad_port))
                for name in clients
            ]
            if where:
                targets = [f"{port},{path}" for port in ports.values() for path in ("/", "/echo", "/relay/news")]
                self.peers.append(self._start("peer clients", "soak.troubles", str(self.seed), *targets))
                honest = self._start("honest", "soak.honest", *(f"{name}={at}" for name, at in where.items()))
                self.peers.append(honest)
                self.settle(honest, set(where))
        except BaseException:
            self.stack.close()
            raise
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _start(self, name: str, *arguments: str) -> Program:
        return self.stack.enter_context(Program(name, *arguments))

    def settle(self, honest: Program, waiting: set[str]) -> None:
        """Waits until every server has answered an honest client: before that, programs start, slowly on a busy
        machine.
        """
        end = time.monotonic() + STARTING
        while waiting and time.monotonic() < end:
            time.sleep(0.1)
            honest.ask()
            for name, figures in honest.answer().items():
                self._complain(name, 0, figures)
                if figures["replies"]:
                    waiting.discard(name)
        self.problems += [f"{name}: no client got a reply in its first {STARTING} s" for name in sorted(waiting)]

    def _complain(self, name: str, now: float, figures: dict[str, Any]) -> None:
        for problem, count in figures.get("problems", {}).items():
            self.problems.append(f"{name}, after {now:.0f} s, {count} times: {problem}")

    def run(self, seconds: float, samples: int) -> Iterator[str]:
        """Runs for some time, and takes a number of samples; yields lines of progress."""
        for number in range(1, samples + 1):
            due = self.begun + seconds * number / samples
            time.sleep(max(0.0, due - time.monotonic()))
            self.sample()
            if number % max(1, samples // 20) == 0:
                yield f"{time.monotonic() - self.begun:.0f} of {seconds:.0f} s: {self.replies} replies in time"

    def sample(self) -> None:
        now = time.monotonic() - self.begun
        programs = self.tested + self.peers
        for program in programs:
            program.ask()
        answers = {program.name: program.answer() for program in programs}
        for program in self.tested:
            for kind, figure in {**dataclasses.asdict(program.usage()), **answers[program.name]}.items():
                self._record(program.name, kind, now, figure)
        for name, figures in answers.get("honest", {}).items():
            self.replies += figures["replies"]
            self.openings += figures["openings"]
            self._complain(name, now, figures)
            if not figures["replies"]:
                self.problems.append(f"{name}, after {now:.0f} s: no client got a reply")
            for kind in ("latency", "opening"):
                if kind in figures:
                    self._record(name, kind, now, figures[kind])

    def _record(self, name: str, kind: str, now: float, figure: float) -> None:
        line = self.lines.setdefault((name, kind), Line())
        line.times.append(now)
        line.figures.append(figure)

    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        """Returns the verdict of each series."""
        return {key: line.verdict(key[1]) for key, line in self.lines.items() if key[1] in TOLERANCES}

    def idle(self) -> list[str]:
        """Returns the clients that the honest server has not answered, at first or from some time on."""
        found = []
        for (name, kind), line in self.lines.items():
            if kind == "answers":
                # A few seconds, or a tenth of all.
                for start in range(0, len(line.figures), max(10, len(line.figures) // 10)):
                    part = line.figures[start : start + max(10, len(line.figures) // 10) + 1]
                    if len(part) > 3 and part[-1] == part[0]:
                        found.append(f"{name}: no answers from second {line.times[start]:.0f} on")
        return found

    def errors(self) -> list[str]:
        """Returns the errors that programs under test have logged."""
        return [f"{program.name}: {line}" for program in self.tested for line in program.printed]
