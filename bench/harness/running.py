"""Measures scenarios one after the other. Each prints a table for each cell, and keeps a record."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import hashlib
import os
import random
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import machine, network
from harness.cores import Cores, allowed_cores, cores_of
from harness.errors import BenchError, ChangedError, UsageError
from harness.lengths import Lengths
from harness.peers import Peers, Sample, Window
from harness.places import BENCH, BINARY, BUILD, RECORDS, ROOT, SERVER, UNFINISHED
from harness.plan import plan
from harness.process import environment, output_of, raise_descriptor_limit
from harness.record import Journal, is_kept
from harness.results import SPREAD, BarResult, judge, unrest
from harness.scenario import Choice, Job, Option, Scenario, load, names
from harness.screen import Clock, Screen
from harness.server import Server
from harness.tables import bars_table, cell_table
from serving.process import ChildError, certificate

__all__ = ["add_arguments", "run"]

# The headline set takes no longer: a cell that was disturbed is run again only while there is time for it.
HEADLINE_SECONDS = 40 * 60.0
CHOICES = ("peer", "workload", "size", "loop")
# Whatever is not as the scenarios say makes a record that is not whole.
CHANGES = ("rounds", "seconds", "warmup", "pin", "core", "server")
# What a figure depends on, of what git has; the rest may change between the records of a report.
MEASURED = ("python", "crates", "bench", "Cargo.toml", "Cargo.lock", "pyproject.toml")
READS_RECORDS = (
    "report.toml",
    "harness/plan.py",
    "harness/report.py",
    "harness/pictures.py",
    "harness/tables.py",
    "harness/wins.py",
)
BESIDE = (
    *("bench/*.md", "bench/records/**", "bench/instructions/**", "crates/*/tests/**"),
    *(f"bench/{path}" for path in READS_RECORDS),
)
# Without git's locks, which a concurrent commit may hold.
GIT = ("git", "--no-optional-locks", "-C", str(ROOT))
PYTHON_VERSION = "import platform; print(platform.python_implementation(), platform.python_version())"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `run` takes."""
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help="default: all scenarios")
    what = parser.add_argument_group("what to measure (default: everything; the options with NAME may be repeated)")
    some = what.add_mutually_exclusive_group()
    headline = "only the cells and peers of docs/benchmarks.md, in at most 40 minutes"
    some.add_argument("--headline", action="store_true", help=headline)
    some.add_argument("--quick", action="store_true", help="run each peer once, for a moment, to show that it works")
    peer = "only this peer, FOLDER[:STYLE][@LOOP]; FOLDER alone means all its styles and loops"
    what.add_argument("--peer", action="append", default=[], metavar="NAME", help=peer)
    what.add_argument("--loop", action="append", default=[], metavar="NAME", help="only peers on this event loop")
    what.add_argument("--workload", action="append", default=[], metavar="NAME", help="only this workload")
    what.add_argument(
        "--size", action="append", default=[], type=int, metavar="BYTES", help="only messages of this size"
    )
    transport = what.add_mutually_exclusive_group()
    transport.add_argument("--plain", dest="tls", action="store_const", const=False, help="only without TLS")
    transport.add_argument("--tls", dest="tls", action="store_const", const=True, help="only with TLS")
    option = "another value for an option of the workloads, for example connections, window or rate"
    what.add_argument("--set", action="append", default=[], type=_option, metavar="OPTION=VALUE", help=option)
    how = parser.add_argument_group("how to measure (default: as the scenario says)")
    how.add_argument("--rounds", type=_positive_int, metavar="N", help="number of windows of each peer in a cell")
    how.add_argument("--seconds", type=_positive, metavar="S", help="length of a window")
    how.add_argument("--warmup", type=_positive, metavar="S", help="time that a peer runs before each window")
    where = "cores of client and server: one for both, two, or any"
    how.add_argument("--pin", choices=["one", "two", "any"], help=where)
    how.add_argument("--core", type=int, help="the core of the client; default: the last one")
    another = "another server: a command that prints where it listens, or a peer that has a server (beast-server)"
    how.add_argument("--server", metavar="COMMAND", help=another)
    how.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter of the peers")
    seed = "seed for the order of the peers in each round; default: random"
    how.add_argument("--seed", type=int, metavar="N", help=seed)
    resume = "continue an interrupted run, and skip scenarios that have a record of the same code and machine"
    how.add_argument("--resume", action="store_true", help=resume)
    missing = "keep a record although a peer that is installed does not run"
    how.add_argument("--allow-missing", action="store_true", help=missing)
    out = parser.add_argument_group("results")
    out.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER", help="where records are kept")
    keep = "keep a record; default: yes, except with --quick. bench/records takes records of committed code only"
    out.add_argument("--record", action=argparse.BooleanOptionalAction, help=keep)


def run(options: argparse.Namespace) -> int:
    """Runs the scenarios and returns the exit status."""
    keeps = options.record if options.record is not None else not options.quick
    plans = _plans(options)
    if options.core is not None and options.core not in allowed_cores():
        raise UsageError(f"core {options.core} is not available: choose from {', '.join(map(str, allowed_cores()))}")
    facts = _facts(options)
    if options.resume and not keeps:
        raise UsageError("--resume goes on with a record: it cannot be there without one (--quick, --no-record)")
    if keeps and options.records == RECORDS and not facts["tree"].isalnum():
        raise UsageError(f"a record names its commit, and {', '.join(MEASURED)} differ from it: commit, or --no-record")
    screen, failed, lengths = Screen(), False, _lengths(options)
    peers = Peers(BENCH / "peers", BUILD, ROOT, environment(BENCH), options.python)
    with screen.busy("builds and asks the peers"):
        peers.prepare(list(dict.fromkeys(peer for _, jobs in plans for job in jobs for peer in job.peers)))
    if keeps and peers.failed and not options.allow_missing:
        lines = "".join(f"\n  {name}: {reason}" for name, reason in peers.failed.items())
        raise BenchError(f"peers that are here do not run: repair them, or measure with --allow-missing:{lines}")
    facts["congestion control"] = network.enter()
    records = options.records / machine.label()
    runs = [_Run(options, scenario, jobs, facts, peers, screen) for scenario, jobs in plans]
    before = [one for one in runs if options.resume and is_kept(records, one.facts, one.peers)]
    expected = sum(lengths.expected(one.scenario, job) for one in runs if one not in before for job in one.jobs)
    clock = Clock(expected, HEADLINE_SECONDS if options.headline else None)
    if not options.quick:
        screen.print(f"{clock} in all\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = UNFINISHED if options.records == RECORDS else options.records / "unfinished"
        for one in runs:
            if one in before:
                screen.print(f"{one.scenario.name}: measured before\n")
                continue
            try:
                # Without a record there is nothing to go on with, and a run that was interrupted keeps what it has.
                failed |= one.run(clock, folder if keeps else Path(temporary), records if keeps else None)
            except (ChangedError, UsageError):
                raise
            except BenchError as error:
                # One scenario that cannot run does not keep the others from it.
                screen.complain(f"{one.scenario.name}: {error}")
                failed = True
    return int(failed)


def _plans(options: argparse.Namespace) -> list[tuple[Scenario, list[Job]]]:
    """Returns the scenarios with what is to be measured of each.

    Raises:
        UsageError: something is unknown, or nothing is left.
    """
    chosen = [tuple(getattr(options, name)) for name in CHOICES]
    choice = Choice(*chosen, tls=options.tls, options=tuple(options.set))
    plans, complaint = [], None
    for name in dict.fromkeys(options.scenario or names()):
        scenario = load(name)
        try:
            jobs = scenario.jobs(choice, quick=options.quick and not options.size)
            if options.headline and not (jobs := plan().headline(scenario, jobs)):
                raise UsageError(f"docs/benchmarks.md shows nothing of {name}")
            plans.append((scenario, jobs))
        except UsageError as error:
            # A workload or peer that one scenario lacks may be another's.
            if options.scenario:
                raise
            complaint = complaint or error
    if not plans:
        raise complaint or UsageError("there are no scenarios")
    return plans


class _Run:
    """One scenario."""

    def __init__(
        self,
        options: argparse.Namespace,
        scenario: Scenario,
        jobs: Sequence[Job],
        facts: dict[str, str],
        all_peers: Peers,
        screen: Screen,
    ) -> None:
        self.options = options
        self.lengths = _lengths(options)
        self.scenario = scenario
        self.peers = all_peers.only([peer for peer in scenario.peers if any(peer in job.peers for job in jobs)])
        self.jobs = [job for job in map(self._possible, jobs) if job.peers]
        self.screen = screen
        self.cores = {mode: cores_of(mode, options.core) for mode in {self._mode(job) for job in jobs}}
        lengths: dict[str, dict[str, None]] = {}
        for job in self.jobs:
            rounds, seconds = self.lengths.rounds_of(scenario, job), self.lengths.seconds_of(scenario, job)
            text = f"{rounds} rounds of {seconds:g} s"
            lengths.setdefault(text, {})[job.workload.group or job.workload.name] = None
        self.facts = {
            "scenario": scenario.name,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **facts,
            **({"set": _set_name(jobs)} if options.headline else {}),
            "server": options.server or scenario.server or SERVER,
            "pinning": "; ".join(f"{mode}: {cores}" for mode, cores in sorted(self.cores.items())),
            "measure": "; ".join(f"{text}: {', '.join(workloads)}" for text, workloads in lengths.items())
            + f"; each after {self.lengths.warmup_of(scenario):g} s",
        }
        self.order = random.Random(options.seed)
        # A quick run measures nothing, so several windows run at the same time.
        self.parallel = (os.cpu_count() or 1) if options.quick else 1
        self.servers: dict[str, Server] = {}
        self.lock = threading.Lock()

    def run(self, clock: Clock, unfinished: Path, records: Path | None) -> bool:
        """Measures, prints, keeps the record; tells whether something failed.

        Raises:
            ChangedError: what is measured was changed.
        """
        scenario, screen = self.scenario, self.screen
        self.clock, self.keeps = clock, records is not None
        self._introduce()
        raise_descriptor_limit()
        # A part of a scenario does not replace an interrupted record of the whole.
        part = "-part" if "choice" in self.facts else "-headline" if self.options.headline else ""
        path = unfinished / f"{scenario.name}{part}.csv"
        self.journal = Journal(path, self.facts, self.peers, resume=bool(self.options.resume))
        if gone := self.journal.discarded:
            screen.print(f"  starts over: not as in the run that was interrupted: {gone}")
        bars: list[BarResult] = []
        failed = bool(self.peers.failed)
        for job, samples in self._measured():
            screen.print(cell_table(scenario, job, samples))
            if not self.options.quick:
                screen.print(f"  {clock} left\n")
            # A bar of peers that are not part of this run is left out.
            some = self.options.peer or self.options.loop or self.options.headline
            bars += [bar for bar in judge(job.workload, job.cell, samples) if bar.figure is not None or not some]
            failed |= any(sample.failure is not None for sample in samples)
        screen.print(bars_table(bars))
        if self.options.quick:
            screen.print("A quick run: it shows that everything works; its figures are no measurements.\n")
        if records is not None:
            screen.print(f"Record: {self.journal.finish(records)}\n")
        return failed

    def _possible(self, job: Job) -> Job:
        ready = self.peers.ready
        able = tuple(name for name in job.peers if name in ready and ready[name].can(job.workload, job.cell.tls))
        return job._replace(peers=able)

    def _measured(self) -> Iterator[tuple[Job, list[Sample]]]:
        """Yields each cell with its samples: first those that an interrupted run has left."""
        before = self.journal.samples
        left = [job for job in self.jobs if job.cell not in before]
        for job in self.jobs:
            if job.cell in before:
                self.clock.skip(self._expected(job))
                yield job, before[job.cell]
        with contextlib.ExitStack() as stack:
            stack.callback(self.peers.close)
            for mode in {self._mode(job) for job in left}:
                self.servers[mode] = self._server(self.cores[mode], stack)
                self.servers[mode].start()
                stack.callback(self.servers[mode].stop)
            self.progress = stack.enter_context(self.screen.busy(self.scenario.name))
            for job in left:
                begun, expected = time.monotonic(), self._expected(job)
                samples = self._cell(job)
                self.clock.over(expected, time.monotonic() - begun)
                apart = unrest(samples)[1]
                if not self.options.quick and apart > SPREAD and self.clock.has_time_for(expected):
                    # Other processes disturbed it. It is run again, and the quieter of the two runs counts.
                    samples = min(samples, self._cell(job, f", again, as it was {apart:.0%} apart"), key=unrest)
                if self.keeps and _tree() != self.facts["tree"]:
                    raise ChangedError(
                        f"{', '.join(MEASURED)} were changed meanwhile: {job.cell} is not kept, but what was measured"
                        " before; put them back and --resume, or begin again with what is there now"
                    )
                self.journal.add(samples)
                yield job, samples

    def _cell(self, job: Job, why: str = "") -> list[Sample]:
        """Runs the rounds of a cell; in each, all peers once, in any order."""
        samples: list[Sample] = []
        rounds = self.lengths.rounds_of(self.scenario, job)
        peers = list(job.peers)
        for number in range(1, rounds + 1):
            self.order.shuffle(peers)
            for sample in self._round(job, peers, number, f"round {number} of {rounds}{why}"):
                samples.append(sample)
                if sample.failure is not None:
                    # It would most likely fail again, after a long wait.
                    peers.remove(sample.peer)
        return samples

    def _round(self, job: Job, peers: Sequence[str], number: int, text: str) -> Iterator[Sample]:
        def window(name: str) -> Sample:
            self.progress(f"{self.scenario.name}, {job.cell}: {text}, {name}; {self.clock} left")
            return self._window(name, job, number)

        if self.parallel == 1:
            yield from map(window, list(peers))
            return
        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            try:
                yield from pool.map(window, list(peers))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.peers.stop()
                raise

    def _window(self, name: str, job: Job, number: int) -> Sample:
        workload, cell = job.workload, job.cell
        server, cores = self.servers[self._mode(job)], self.cores[self._mode(job)]
        endpoint = server.endpoint(workload.target(cell.size), tls=cell.tls)
        seconds, warmup = self.lengths.seconds_of(self.scenario, job), self.lengths.warmup_of(self.scenario)
        window = Window(seconds, warmup, self.scenario.batch, cores.client)
        sample = Sample(**cell._asdict(), round=number, peer=name)
        sample = self.peers.run(self.peers.ready[name], sample, workload, window, endpoint)
        with self.lock:
            failure = server.failure()
            if failure is None:
                return sample
            server.stop()
            try:
                server.start()
            except BenchError as error:
                raise BenchError(f"{failure} ({cell}, {name}), and does not start again: {error}") from error
        return Sample(**cell._asdict(), round=number, peer=name, version=sample.version, failure=failure)

    def _expected(self, job: Job) -> float:
        return self.lengths.expected(self.scenario, job)

    def _mode(self, job: Job) -> str:
        return self.options.pin or ("any" if self.options.quick else job.workload.cores or self.scenario.cores)

    def _server(self, cores: Cores, stack: contextlib.ExitStack) -> Server:
        command = self.facts["server"]
        if command == SERVER and not (ROOT / BINARY).exists():
            raise BenchError("no echo server: cargo build --release -p wirespeed-bench, or name a --server")
        tls = any(job.cell.tls for job in self.jobs)
        if self.peers.has_folder(command):
            try:
                command = shlex.join(self.peers.server(command, *stack.enter_context(certificate())))
            except ChildError as error:
                raise BenchError(str(error)) from error
        return Server(command, tls=tls, cores=cores.servers, cwd=ROOT, env=self.peers.env)

    def _introduce(self) -> None:
        screen = self.screen
        screen.print(f"[bold]{self.scenario.title}[/]")
        for key, value in self.facts.items():
            screen.print(f"  {key}: {value}", markup=False)
        for name, reason in self.peers.skipped.items():
            screen.print(f"  {name}: skipped: {reason}", markup=False)
        for name, reason in self.peers.failed.items():
            screen.print(f"  {name}: FAILED: {reason}", markup=False, style="red")
        screen.print("")
        if not self.jobs:
            raise BenchError("none of these peers can run any of these workloads, plain or TLS as asked")


def _lengths(options: argparse.Namespace) -> Lengths:
    """Returns the rounds and lengths of a command line."""
    return Lengths(options.rounds, options.seconds, options.warmup, options.quick, options.headline)


def _set_name(jobs: Sequence[Job]) -> str:
    """Returns a name for the cells and peers of a headline run, so that `--resume` notices when they have changed."""
    text = "\n".join(f"{job.cell}: {', '.join(job.peers)}" for job in jobs)
    return f"headline {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _facts(options: argparse.Namespace) -> dict[str, str]:
    """Returns the circumstances that are the same for all scenarios."""
    python = output_of([options.python, "-c", PYTHON_VERSION])
    if python is None:
        raise UsageError(f"--python {options.python} does not run")
    parts = [f"--{name} {value}" for name in CHOICES for value in getattr(options, name)]
    parts += [] if options.tls is None else ["--tls" if options.tls else "--plain"]
    parts += [f"--set {name}={value}" for name, value in options.set]
    parts += [f"--{name} {value}" for name in CHANGES if (value := getattr(options, name)) is not None]
    parts += ["--quick"] if options.quick else []
    revision = output_of([*GIT, "rev-parse", "--short=12", "HEAD"])
    facts = {"revision": revision or "no commit", "tree": _tree(), **machine.describe(), "peers' python": python}
    return facts | ({"choice": " ".join(parts)} if parts else {})


def _tree() -> str:
    """Returns a name for what is measured, the same at all commits that have it; with a + if none has."""
    paths = ["--", *MEASURED, *(f":(exclude,glob){path}" for path in BESIDE)]
    files = output_of([*GIT, "ls-files", "--stage", *paths])
    changed = output_of([*GIT, "status", "--porcelain", "--untracked-files=all", *paths])
    name = hashlib.sha256((files or "").encode()).hexdigest()[:12]
    return name if files and changed == "" else f"{name}+"


def _option(text: str) -> tuple[str, Option]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not OPTION=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600")
    return value


def _positive_int(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return int(text)
