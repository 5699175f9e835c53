"""The peers: finds them in `bench/peers`, builds and probes them, runs one for one window."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from harness.build import Builder, Missing
from harness.errors import BenchError, UsageError
from harness.figures import KINDS, read_figures
from harness.process import Forking, child, last_line, terminate
from harness.scenario import Cell, PeerName, Workload
from harness.server import Endpoint

__all__ = ["Peer", "Peers", "Sample", "Window"]

# All are asked at once, each an interpreter and a library to load.
PROBE_SECONDS = 60.0
# Beyond warm-up and window: start of the interpreter, checks, the step that was under way when the window
# ended.
GRACE_SECONDS = 20.0
# Runs of a program that forks before it is started anew: how it happens to lie in memory is the same in all of them.
RUNS = 4
# For each connection that has to be opened: a TLS handshake and a message, many times over.
CONNECTION_SECONDS = 0.01
# For each byte of a file that goes over in the warm-up and again in the window: the slowest have some 40 MB/s.
BYTE_SECONDS = 2 / 10e6


class PeerFile(msgspec.Struct, forbid_unknown_fields=True):
    """A peer.toml: what the peer is, and its commands, with {python}, {peer} and {build} for folders and interpreter.

    Attributes:
        summary: what it is, for people.
        command: what runs it.
        build: what compiles it, with {cc} or {cxx}, and {packages} for where Python's are.
        needs: headers that this includes, each with the command that installs it.
        server: what runs its server, for clients to be measured with, with {certificate} and {authority} for PEM files.
    """

    summary: str
    command: list[str]
    build: list[str] = []
    needs: dict[str, str] = {}
    server: list[str] = []


@dataclass(frozen=True)
class Peer:
    """A peer that can run."""

    name: str
    command: tuple[str, ...]
    version: str
    workloads: tuple[str, ...]
    tls: bool
    forks: bool

    def can(self, workload: Workload, tls: bool) -> bool:
        """Tells whether this peer can run a workload, with TLS or without."""
        return workload.runs in self.workloads and (self.tls or not tls)


@dataclass(frozen=True)
class Window:
    """How long a peer is measured, after how long, with how many messages per call, on which core."""

    seconds: float
    warmup: float
    batch: int
    core: int | None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One window of one peer in one cell: what it did and what that cost, or why there is no figure."""

    workload: str
    size: int
    tls: bool
    round: int
    peer: str
    version: str = ""
    measures: str = "rate"
    count: int = 0
    seconds: float = 0.0
    user: float = 0.0
    system: float = 0.0
    server: float | None = None
    memory: int | None = None
    figures: dict[str, float] = {}
    failure: str | None = None

    @property
    def cell(self) -> Cell:
        """Where it was measured."""
        return Cell(self.workload, self.size, self.tls)

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.count / self.seconds

    @property
    def value(self) -> float:
        """What is compared, as `measures` says."""
        figure = KINDS[self.measures].figure
        if figure is not None:
            return self.figures[figure]
        return (self.memory or 0) / self.count if self.measures == "memory" else self.rate


@dataclass
class Peers:
    """The peers of a scenario.

    Attributes:
        folder: where they are.
        build: where what they compile is kept.
        python: their interpreter.
        ready: those that can run, by name.
        skipped: the reason why a peer is not here, by name.
        failed: the reason why a peer that is here cannot run, by name.
        running: the processes that run at this moment.
        idle: those that fork, and wait for what is next, by name.
    """

    folder: Path
    build: Path
    cwd: Path
    env: dict[str, str]
    python: str
    ready: dict[str, Peer] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    idle: dict[str, list[Forking]] = field(default_factory=dict)

    def stop(self) -> None:
        """Ends the peers that run at this moment, in whatever thread."""
        for process in list(self.running):
            terminate(process)

    def close(self) -> None:
        """Ends those that wait."""
        while self.idle:
            for one in self.idle.popitem()[1]:
                one.stop()

    def prepare(self, names: Sequence[str]) -> None:
        """Builds and probes the peers; each lands in `ready`, `skipped` or `failed`.

        One that failed is tried once more, when no other one is in its way.

        Raises:
            UsageError: a peer has no folder, or its peer.toml does not say what it must.
        """
        folders: dict[str, list[str]] = {}
        for name in names:
            folders.setdefault(PeerName.of(name).folder, []).append(name)
        # Each folder by itself, as its peers are built together.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(self._prepare_all, folders.values()):
                pass
        failed = [name for name in names if self.failed.pop(name, None) is not None]
        self._prepare_all(failed)

    def only(self, names: Sequence[str]) -> Peers:
        """Returns these alone, in this order, of those that were prepared."""
        ready = {name: self.ready[name] for name in names if name in self.ready}
        skipped = {name: self.skipped[name] for name in names if name in self.skipped}
        failed = {name: self.failed[name] for name in names if name in self.failed}
        return dataclasses.replace(self, ready=ready, skipped=skipped, failed=failed)

    def _prepare_all(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._prepare(name)
            except Missing as error:
                self.skipped[name] = str(error)
            except UsageError:
                raise
            except BenchError as error:
                self.failed[name] = str(error)

    def _prepare(self, name: str) -> None:
        parts = PeerName.of(name)
        file = self._read(parts.folder)
        places = self._places(parts.folder, file)
        how = {"--style": parts.style, "--loop": parts.loop}
        command = [part.format_map(places) for part in file.command]
        command += [part for option, value in how.items() if value is not None for part in (option, value)]
        answer = _answer(*self._communicate([*command, "--probe"], PROBE_SECONDS))
        if "skipped" in answer:
            raise Missing(str(answer["skipped"]))
        try:
            workloads, version = tuple(answer["workloads"]), str(answer["version"])
            tls, forks = bool(answer["tls"]), bool(answer.get("forks"))
            self.ready[name] = Peer(name, tuple(command), version, workloads, tls, forks)
        except KeyError as error:
            raise BenchError(f"its answer to --probe has no {error}") from None

    def run(self, peer: Peer, sample: Sample, workload: Workload, window: Window, endpoint: Endpoint) -> Sample:
        """Runs the window that `sample` stands for and returns it filled in; what goes wrong with the peer is in it."""
        where = {"url": endpoint.url, "ca": endpoint.ca, "server-pid": endpoint.pid}
        what = {"workload": workload.runs, "size": sample.size}
        options: dict[str, object] = {**where, **what, **dataclasses.asdict(window), **workload.options}
        sample = replace(sample, measures=workload.measures, version=peer.version)
        opening = CONNECTION_SECONDS * int(workload.options.get("connections", 0))
        whole = BYTE_SECONDS * int(workload.options.get("bytes", 0))
        deadline = window.warmup + window.seconds + opening + whole + GRACE_SECONDS
        arguments = _arguments(options)
        try:
            # Of memory a forked process shares what it has not written to.
            if peer.forks and workload.measures != "memory":
                return _filled(sample, _answer(*self._fork(peer, arguments, deadline)))
            return _filled(sample, _answer(*self._communicate([*peer.command, *arguments], deadline)))
        except BenchError as error:
            return replace(sample, failure=str(error))

    def has_folder(self, name: str) -> bool:
        """Tells whether there is a peer of that name."""
        return (self.folder / name / "peer.toml").exists()

    def server(self, name: str, certificate: str, authority: str) -> list[str]:
        """Returns the command of the server that comes with a peer, built, with these PEM files.

        Raises:
            UsageError: the peer has none.
            BenchError: it cannot be built here.
        """
        file = self._read(name)
        if not file.server:
            raise UsageError(f"peer {name} is no server that clients can be measured with")
        try:
            places = self._places(name, file) | {"certificate": certificate, "authority": authority}
        except Missing as error:
            raise BenchError(f"the server {name} cannot run: {error}") from None
        return [part.format_map(places) for part in file.server]

    def _read(self, folder: str) -> PeerFile:
        path = self.folder / folder / "peer.toml"
        try:
            return msgspec.toml.decode(path.read_text(), type=PeerFile)
        except FileNotFoundError:
            raise UsageError(f"peer {folder} has no {path}") from None
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: {error}") from error

    def _places(self, name: str, file: PeerFile) -> dict[str, str]:
        """Returns what is replaced in the commands of a peer; builds it if it has to be."""
        folder = self.folder / name
        places = {"python": self.python, "peer": str(folder)}
        if file.build:
            places["build"] = str(Builder(self.build, self.python, self._run).build(folder, file.build, file.needs))
        return places

    def _run(self, command: Sequence[str], deadline: float) -> bytes:
        status, out, last_error = self._communicate(command, deadline)
        if status:
            raise BenchError(f"{command[0]} ended with status {status}{': ' + last_error if last_error else ''}")
        return out

    def _communicate(self, command: Sequence[str], deadline: float) -> tuple[int, bytes, str]:
        with child(command, cwd=self.cwd, env=self.env) as process:
            self.running.add(process)
            try:
                out, errors = process.communicate(timeout=deadline)
            except subprocess.TimeoutExpired:
                raise BenchError(f"no result within {deadline:.0f} s") from None
            finally:
                self.running.discard(process)
            return process.returncode, out, last_line(io.BytesIO(errors))

    def _fork(self, peer: Peer, options: Sequence[str], deadline: float) -> tuple[int, bytes, str]:
        idle, stays = self.idle.setdefault(peer.name, []), False
        one = idle.pop() if idle else Forking(peer.command, self.cwd, self.env)
        self.running.add(one.process)
        try:
            result = one.run(options, deadline)
            stays = one.runs < RUNS and one.process.poll() is None
            return result
        finally:
            self.running.discard(one.process)
            if stays:
                idle.append(one)
            else:
                one.stop()


def _answer(status: int, out: bytes, last_error: str) -> dict[str, Any]:
    """Returns the one line of a peer, or raises BenchError with the reason why there is none."""
    lines = out.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if isinstance(answer, dict) and "failed" in answer:
        raise BenchError(str(answer["failed"]))
    if status or not isinstance(answer, dict):
        ended = f"ended with status {status}" if status else "printed no result"
        raise BenchError(f"{ended}{': ' + last_error if last_error else ''}")
    return answer


def _filled(sample: Sample, answer: dict[str, Any]) -> Sample:
    """Takes a peer's answer for what it is; a figure that was not checked is no figure."""
    if "skipped" in answer:
        raise BenchError(str(answer["skipped"]))
    if answer.get("checked") is not True:
        raise BenchError("its messages were not checked")
    try:
        server, memory = answer.get("server"), answer.get("memory")
        filled = replace(
            sample,
            count=int(answer["count"]),
            seconds=float(answer["seconds"]),
            user=float(answer["user"]),
            system=float(answer["system"]),
            server=None if server is None else float(server),
            # Less than nothing can be measured where few connections fit into what was free before.
            memory=None if memory is None else max(0, int(memory)),
            figures=read_figures(answer),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"its result is not of the contract: {type(error).__name__} {error}") from error
    if filled.count <= 0 or filled.seconds <= 0:
        raise BenchError("its window is empty")
    figure = KINDS[sample.measures].figure
    if (sample.measures == "memory" and filled.memory is None) or (figure is not None and figure not in filled.figures):
        raise BenchError(f"its result has no {figure or 'memory'}")
    return filled


def _arguments(options: dict[str, object]) -> list[str]:
    """Returns a command line of options: those that are false or None are left out, true ones are flags."""
    chosen = {f"--{name}": value for name, value in options.items() if value is not False and value is not None}
    return [part for name, value in chosen.items() for part in ((name,) if value is True else (name, str(value)))]
