"""The subcommand `run`: scenarios one after the other, each with its server, its tables and its record."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import choice, machine
from harness.errors import BenchError, UsageError
from harness.journal import Journal, Journals
from harness.peers import Peers, Sample
from harness.places import BENCH, BINARY, BUILD, RECORDS, ROOT, SERVER, UNFINISHED
from harness.process import allowed_cores, environment, raise_descriptor_limit
from harness.record import as_json
from harness.results import judge
from harness.runner import Runner
from harness.scenario import Measure, Scenario
from harness.screen import Screen
from harness.server import Server
from harness.tables import bars_table, cell_table
from serving.nodes import Cores

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `run` takes."""
    choice.add_arguments(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--quick", action="store_true", help="everything once and short: shows that it runs, not more")
    how.add_argument("--rounds", type=_positive_int, metavar="N", help="windows per peer and cell")
    how.add_argument("--seconds", type=_positive, metavar="S", help="length of a window")
    how.add_argument("--warmup", type=_positive, metavar="S", help="time before each window")
    where = "the cores of client and server: one for both, two, any; both: first one, then two; default: as the "
    how.add_argument("--pin", choices=["one", "two", "any", "both"], help=where + "scenario says")
    how.add_argument("--core", type=int, help="the client's core; by default the last one")
    another = "another server, which says where it listens: its command, or a peer that has one (beast-server)"
    how.add_argument("--server", default=SERVER, metavar="COMMAND", help=another)
    how.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter of the peers")
    how.add_argument("--resume", action="store_true", help="go on where the run before was interrupted")
    out = parser.add_argument_group("results")
    out.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON; for one scenario")
    out.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER", help="where records go")
    keep = "keep the samples; default: unless --quick"
    out.add_argument("--record", action=argparse.BooleanOptionalAction, help=keep)
    out.add_argument("--enforce", action="store_true", help="a missed bar is a failure")


def run(options: argparse.Namespace) -> int:
    """Runs the scenarios and returns the exit status."""
    found = choice.choose(options, quick=options.quick)
    runs = [(scenario, pin) for scenario in found for pin in _pins(scenario, options)]
    if options.json is not None and len(runs) > 1:
        raise UsageError("--json takes what one scenario, pinned in one way, has measured: name one")
    if options.core is not None and options.core not in allowed_cores():
        raise UsageError(f"core {options.core} is not available: choose from {', '.join(map(str, allowed_cores()))}")
    python = _python_version(options.python)
    keeps = options.record if options.record is not None else not options.quick
    if options.resume and not keeps:
        raise UsageError("--resume goes on with a record: it cannot be there without one (--quick, --no-record)")
    with contextlib.ExitStack() as stack:
        # Without a record there is nothing to go on with, and a run that was interrupted keeps what it has.
        folder = UNFINISHED if keeps else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return _run_all(options, runs, python, Journals(folder), keeps=keeps)


def _run_all(
    options: argparse.Namespace,
    runs: Sequence[tuple[Scenario, str]],
    python: str,
    journals: Journals,
    *,
    keeps: bool,
) -> int:
    screen, failed, stopped = Screen(), False, False
    all_peers = Peers(BENCH / "peers", BUILD, ROOT, environment(BENCH), options.python)
    ones = [_Run(options, scenario, pin, python, all_peers, journals, screen, keeps=keeps) for scenario, pin in runs]
    if not options.resume:
        journals.forget(one.name for one in ones)
    for one in ones:
        if journals.is_over(one.name):
            screen.print(f"{one.name}: measured before\n")
            continue
        try:
            failed |= one.run()
        except UsageError:
            raise
        except BenchError as error:
            if len(ones) == 1:
                raise
            # One scenario that cannot run does not keep the others from it.
            screen.complain(f"{one.name}: {error}")
            stopped = True
    if not stopped:
        # Else the next run with --resume has only the others to do.
        journals.forget(one.name for one in ones)
    return int(failed or stopped)


def _pins(scenario: Scenario, options: argparse.Namespace) -> list[str]:
    if options.pin == "both":
        return ["one", "two"]
    # A quick run measures nothing, so several windows run at the same time.
    return [options.pin or ("any" if options.quick else scenario.cores)]


class _Run:
    """One scenario, pinned in one way.

    Attributes:
        name: that of its record.
        keeps: whether the record is kept.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        scenario: Scenario,
        pin: str,
        python: str,
        all_peers: Peers,
        journals: Journals,
        screen: Screen,
        *,
        keeps: bool,
    ) -> None:
        self.options = options
        self.scenario = scenario
        self.pin = pin
        self.name = scenario.name if pin == scenario.cores else f"{scenario.name}-{pin}"
        self.python = python
        self.all_peers = all_peers
        self.journals = journals
        self.screen = screen
        self.keeps = keeps

    def run(self) -> bool:
        """Measures, prints, keeps the record; tells whether something failed."""
        options, scenario, screen = self.options, self.scenario, self.screen
        measure = _measure(scenario, options)
        client_core, server_cores = _cores(self.pin, options.core, screen)
        with screen.busy(f"{scenario.name}: builds and asks the peers"):
            self.all_peers.prepare(scenario.peers)
        peers = self.all_peers.only(scenario.peers)
        facts = self._facts(measure, client_core, server_cores)
        self._introduce(facts, peers)
        server = self._server(peers, server_cores)
        runner = Runner(_with_lengths(scenario, options), measure, peers, server, client_core)
        if options.quick:
            runner.parallel = os.cpu_count() or 1
        if not runner.cells():
            raise BenchError("none of these peers can run any of these workloads, plain or TLS as asked")
        raise_descriptor_limit()

        journal = Journal(self.journals.path(self.name), facts, peers)
        if journal.discarded is not None:
            screen.print(f"  starts over: since the run that was interrupted there is another {journal.discarded}")
        samples = self._measure_cells(runner, server, journal)

        bars = judge(scenario, samples)
        screen.print(bars_table(bars))
        if options.quick:
            screen.print("A quick run: it shows that everything works; its figures are no measurements.\n")
        if options.json is not None:
            _write(options.json, as_json(scenario.name, facts, peers, samples, bars))
        if self.keeps:
            path = journal.finish(options.records / machine.label(), self.name)
            screen.print(f"Record: {path}\n")
        self.journals.finished(self.name)
        failed = bool(peers.failed) or any(sample.failure is not None for sample in samples)
        return failed or (options.enforce and any(bar.verdict == "MISS" for bar in bars))

    def _measure_cells(self, runner: Runner, server: Server, journal: Journal) -> list[Sample]:
        samples: list[Sample] = []
        scenario, screen = self.scenario, self.screen
        for cell in (cell for cell in runner.cells() if cell in journal.samples):
            samples += journal.samples[cell]
            screen.print(cell_table(scenario, cell, journal.samples[cell]))
        server.start()
        try:
            with screen.progress(scenario.name, runner.windows(without=journal.samples)) as progress:
                runner.progress = progress
                for cell, cell_samples in runner.run(without=journal.samples):
                    samples += cell_samples
                    journal.add(cell_samples)
                    screen.print(cell_table(scenario, cell, cell_samples))
        finally:
            server.stop()
        return samples

    def _server(self, peers: Peers, cores: frozenset[int] | None) -> Server:
        command = self.options.server
        if command == SERVER and not (ROOT / BINARY).exists():
            raise BenchError(
                "no echo server: build it with cargo build --release -p wirespeed-bench, or name a --server"
            )
        of_peer = peers.server(command)
        tls = any(True in workload.tls for workload in self.scenario.workloads)
        return Server(
            command if of_peer is None else shlex.join(of_peer), tls=tls, cores=cores, cwd=ROOT, env=peers.env
        )

    def _facts(self, measure: Measure, client_core: int | None, server_cores: frozenset[int] | None) -> dict[str, str]:
        chosen = choice.describe(self.options)
        return {
            "scenario": self.scenario.name,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "revision": _revision(),
            **machine.describe(),
            "peers' python": self.python,
            "server": self.options.server,
            "pinning": f"{self.pin}: {_pinning(self.pin, client_core, server_cores)}",
            "measure": f"{measure.rounds} rounds of {measure.seconds:g} s after {measure.warmup:g} s, "
            f"batches of {measure.batch}",
            **({"choice": chosen} if chosen else {}),
        }

    def _introduce(self, facts: dict[str, str], peers: Peers) -> None:
        screen = self.screen
        screen.print(f"[bold]{self.scenario.title}[/]")
        for key, value in facts.items():
            screen.print(f"  {key}: {value}", markup=False)
        for name, reason in peers.skipped.items():
            screen.print(f"  {name}: skipped: {reason}", markup=False)
        for name, reason in peers.failed.items():
            screen.print(f"  {name}: FAILED: {reason}", markup=False, style="red")
        screen.print("")
        if not peers.ready:
            raise BenchError("no peer is left to measure")


def _measure(scenario: Scenario, options: argparse.Namespace) -> Measure:
    measure = scenario.quick if options.quick else scenario.measure
    given = {name: getattr(options, name) for name in ("rounds", "seconds", "warmup")}
    return dataclasses.replace(measure, **{name: value for name, value in given.items() if value is not None})


def _with_lengths(scenario: Scenario, options: argparse.Namespace) -> Scenario:
    """Returns the scenario without lengths of windows of its own, if one is given for all."""
    if options.seconds is None:
        return scenario
    workloads = tuple(dataclasses.replace(workload, seconds=None) for workload in scenario.workloads)
    return dataclasses.replace(scenario, workloads=workloads)


def _cores(mode: str, core: int | None, screen: Screen) -> tuple[int | None, frozenset[int] | None]:
    """Returns the core of the client, and those of the servers: one, or in the mode `each` all others."""
    allowed = allowed_cores()
    if mode == "any" or not allowed:
        if mode != "any":
            screen.complain("this system cannot pin processes to cores: measuring without")
        return None, None
    # The last one: the first core serves most interrupts.
    client = allowed[-1] if core is None else core
    if mode == "one":
        return client, frozenset([client])
    others = [other for other in allowed if other != client]
    if not others:
        raise UsageError(f"a run that is pinned to {mode} needs two cores, this process may use one: try --pin one")
    return client, frozenset(others if mode == "each" else others[-1:])


def _pinning(mode: str, client: int | None, servers: frozenset[int] | None) -> str:
    if client is None or servers is None:
        return "client on any core, server on any core"
    if mode == "each":
        return str(Cores.spread(client, servers))
    return f"client on core {client}, server on core {min(servers)}"


def _python_version(python: str) -> str:
    code = "import platform; print(platform.python_implementation(), platform.python_version())"
    try:
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--python {python} does not run: {error}") from error
    return result.stdout.strip()


def _revision() -> str:
    """Returns the commit that is measured, with a + if files were changed since; unknown outside of a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.strip()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}") from error


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value
