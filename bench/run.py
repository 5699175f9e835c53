"""Runs a scenario of benchmarks: `python bench/run.py sync`, or `list` for what there is.

Exit status: 0 if everything that is installed was measured, 1 if something failed (with --enforce also if a bar was
missed), 2 if something unknown was asked for, 130 after Ctrl-C. Method and contract are in METHODOLOGY.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from harness import compare, machine
from harness.errors import BenchError, UsageError
from harness.peers import Peers, Sample
from harness.process import allowed_cores, environment, raise_descriptor_limit
from harness.record import as_json, write_csv
from harness.report import bars_text, cell_text
from harness.results import judge
from harness.runner import Runner
from harness.scenario import Measure, Scenario, load, names
from harness.server import Server

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
# What peers compile: git ignores it, `make clean` removes it.
BUILD = ROOT / "build" / "bench"
# Relative to ROOT, where the children run.
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "wirespeed-bench")
SERVER = f"{shlex.quote(str(BINARY))} echo --port 0 --tls-port 0"


def main() -> int:
    """Runs the command line and returns the exit status."""
    if sys.argv[1:2] == ["compare"]:
        try:
            return compare.main(sys.argv[2:])
        except UsageError as error:
            _complain(str(error))
            return 2
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        if options.scenario == "list":
            _list()
            return 0
        return _run(options)
    except BenchError as error:
        _complain(str(error))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        _complain("interrupted: the children are stopped, nothing is recorded")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Benchmarks; method and bias are declared in bench/*.md.")
    parser.add_argument("scenario", help="a scenario; or list; or compare, for two records (compare --help)")
    choice = parser.add_argument_group("what (all by default; each option may be repeated)")
    choice.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME",
        help="FOLDER[:STYLE][@LOOP]; FOLDER alone means all of it",
    )
    choice.add_argument("--loop", action="append", default=[], metavar="NAME", help="only peers on that event loop")
    choice.add_argument("--workload", action="append", default=[], metavar="NAME")
    choice.add_argument("--size", action="append", default=[], type=int, metavar="BYTES")
    transport = choice.add_mutually_exclusive_group()
    transport.add_argument("--plain", dest="tls", action="store_const", const=False, help="only without TLS")
    transport.add_argument("--tls", dest="tls", action="store_const", const=True, help="only with TLS")
    how = parser.add_argument_group("how")
    how.add_argument("--quick", action="store_true", help="everything once and short: shows that it runs, not more")
    how.add_argument("--rounds", type=_positive_int, metavar="N", help="windows per peer and cell")
    how.add_argument("--seconds", type=_positive, metavar="S", help="length of a window")
    how.add_argument("--warmup", type=_positive, metavar="S", help="time before each window")
    how.add_argument("--connections", type=_positive_int, metavar="N", help="idle connections, where there are any")
    where = "where client and server run; default: as the scenario says"
    how.add_argument("--cores", choices=["one", "two", "any"], help=where)
    how.add_argument("--core", type=int, help="the client's core; by default the last one")
    another = "another server, which says where it listens: its command, or a peer that has one (beast-server)"
    how.add_argument("--server", default=SERVER, metavar="COMMAND", help=another)
    how.add_argument("--python", default=sys.executable, metavar="PATH", help="the interpreter of the peers")
    out = parser.add_argument_group("results")
    out.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    out.add_argument("--records", type=Path, default=BENCH / "records", metavar="FOLDER", help="where records go")
    out.add_argument(
        "--record", action=argparse.BooleanOptionalAction, help="keep the samples; default: unless --quick"
    )
    out.add_argument("--enforce", action="store_true", help="a missed bar is a failure")
    return parser


def _run(options: argparse.Namespace) -> int:
    scenario = load(options.scenario)
    if options.quick and not options.size:
        scenario = scenario.shortened()
    scenario = scenario.narrowed(options.peer, options.workload, options.size, options.tls, options.loop)
    measure = _measure(scenario, options)
    cores = options.cores or scenario.cores
    client_core, server_core = _cores(cores, options.core)
    tls = any(workload.tls != (False,) for workload in scenario.workloads)
    facts = {
        "scenario": scenario.name,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **machine.describe(),
        "peers' python": _python_version(options.python),
        "server": options.server,
        "pinning": f"{cores}: client {_core_text(client_core)}, server {_core_text(server_core)}",
        "measure": f"{measure.rounds} rounds of {measure.seconds:g} s after {measure.warmup:g} s, "
        f"batches of {measure.batch}"
        + (f", {measure.window} messages under way" if measure.window is not None else "")
        + (f", {measure.connections} idle connections" if measure.connections is not None else ""),
    }
    env = environment(BENCH)
    samples: list[Sample] = []
    peers = Peers(BENCH / "peers", BUILD, ROOT, env, options.python)
    peers.prepare(scenario.peers)
    print(scenario.title)
    for key, value in facts.items():
        print(f"  {key}: {value}")
    for name, reason in peers.skipped.items():
        print(f"  {name}: skipped: {reason}")
    for name, reason in peers.failed.items():
        print(f"  {name}: FAILED: {reason}")
    print(flush=True)
    if not peers.ready:
        raise BenchError("no peer is left to measure")

    of_peer = peers.server(options.server)
    server_command = options.server if of_peer is None else shlex.join(of_peer)
    server = Server(server_command, tls=tls, core=server_core, cwd=ROOT, env=env)
    runner = Runner(scenario, measure, peers, server, client_core)
    if not runner.cells():
        raise BenchError("none of these peers can run any of these workloads, plain or TLS as asked")
    if options.server == SERVER and not (ROOT / BINARY).exists():
        raise BenchError("no echo server: build it with cargo build --release -p wirespeed-bench, or name a --server")
    if measure.connections is not None:
        raise_descriptor_limit()
    server.start()
    try:
        progress = _Progress(runner.windows())
        runner.progress = progress
        for cell, cell_samples in runner.run():
            samples += cell_samples
            progress.clear()
            print(cell_text(scenario, cell, cell_samples), flush=True)
    finally:
        server.stop()

    bars = judge(scenario, samples)
    print(bars_text(bars))
    if options.quick:
        print("A quick run: it shows that everything works; its figures are no measurements.\n")
    if options.json is not None:
        _write(options.json, as_json(scenario.name, facts, peers, samples, bars))
    if options.record if options.record is not None else not options.quick:
        try:
            path = write_csv(options.records / machine.label(), scenario.name, facts, peers, samples)
        except OSError as error:
            raise BenchError(f"cannot keep the record: {error}") from error
        print(f"Record: {path}")
    failed = bool(peers.failed) or any(sample.failure is not None for sample in samples)
    missed = options.enforce and any(bar.verdict == "MISS" for bar in bars)
    return int(failed or missed)


def _measure(scenario: Scenario, options: argparse.Namespace) -> Measure:
    measure = scenario.quick if options.quick else scenario.measure
    names = ["rounds", "seconds", "warmup", *(["connections"] if measure.connections is not None else [])]
    given = {name: getattr(options, name) for name in names}
    return dataclasses.replace(measure, **{name: value for name, value in given.items() if value is not None})


def _cores(mode: str, core: int | None) -> tuple[int | None, int | None]:
    """Returns the cores of client and server."""
    allowed = allowed_cores()
    if mode == "any" or not allowed:
        if mode != "any":
            _complain("this system cannot pin processes to cores: measuring without")
        return None, None
    # The last one: the first core serves most interrupts.
    client = allowed[-1] if core is None else core
    if client not in allowed:
        raise UsageError(f"core {client} is not available: choose from {', '.join(map(str, allowed))}")
    if mode == "one":
        return client, client
    others = [other for other in allowed if other != client]
    if not others:
        raise UsageError("--cores two needs two cores, this process may use one")
    return client, others[-1]


def _core_text(core: int | None) -> str:
    return "on any core" if core is None else f"on core {core}"


def _python_version(python: str) -> str:
    code = "import platform; print(platform.python_implementation(), platform.python_version())"
    try:
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"--python {python} does not run: {error}") from error
    return result.stdout.strip()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}") from error


def _list() -> None:
    for name in names():
        scenario = load(name)
        print(f"{name}: {scenario.title}\n  peers: {', '.join(scenario.peers)}")
        for workload in scenario.workloads:
            transports = " and ".join("TLS" if tls else "plain" for tls in workload.tls)
            sizes = f"{', '.join(map(str, workload.sizes))} bytes, " if any(workload.sizes) else ""
            print(f"  {workload.name}: {workload.title}; {sizes}{transports}")


class _Progress:
    """One line on the terminal that says what runs; nothing where there is no terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K[{self.done}/{self.total}] {text}", end="", file=sys.stderr, flush=True)
        self.done += 1

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


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


def _complain(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr)


def _terminated(signum: int, frame: object) -> None:
    # Unwinds, so that the children are stopped.
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
