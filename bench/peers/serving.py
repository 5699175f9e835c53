"""The program around the server peers: starts the server, puts load on it, prints the JSON line.

A server peer's figures are those of its server: its rate, as the load generator has counted and checked it, and its
CPU time. The load generator runs on the core that the harness gives; the server on another, where there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from peers.loops import LIBRARIES
from peers.program import Library, end, fail, parser, version
from peers.usage import process_cpu

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
LOAD = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "wirespeed-bench"
PICOWS_LOAD = Path(__file__).with_name("picows_load.py")

# Of each workload: that of the load generator, and the path at the server.
WORKLOADS: dict[str, tuple[str, str]] = {
    "echo": ("echo", "/"),
    "echo-picows": ("picows", "/"),
    "fan-out": ("fan-out", "/fan-out"),
    "open": ("open", "/"),
    "idle": ("idle", "/"),
}

# Opened before the first look at the memory: what a process needs once is not counted.
FIRST = 100

# Large enough to be compressed where that is agreed on, and no larger: handlers that wait still hold the last message.
IDLE_SIZE = 256
# After an echo, for what a server releases when a connection is idle: its keepalive is set to a second for this.
SETTLE_SECONDS = 3.0


def main(server: Path | None, libraries: Sequence[Library], workloads: Sequence[str] | None = None) -> NoReturn:
    """Runs a server peer: measures, or answers --probe.

    Args:
        server: Its program. It takes --style and --loop, prints its port, and ends with its standard input. None: a
            compiled one, which --program names; it takes --until-eof, and says where it listens.
        libraries: What must be installed.
        workloads: Those that it takes part in; None for all.
    """
    names = list(WORKLOADS) if workloads is None else list(workloads)
    arguments = parser(names)
    arguments.add_argument("--style")
    arguments.add_argument("--loop", default="asyncio")
    arguments.add_argument("--deflate", action="store_true", help="offer permessage-deflate")
    arguments.add_argument("--program", help="the server, if it was compiled")
    options = arguments.parse_args()
    on = LIBRARIES[options.loop]
    libraries = [*libraries, *([on] if on is not None else [])]
    try:
        about = {"version": version(libraries) if server is not None else _compiled_version(options.program)}
        if options.probe:
            end(about | {"workloads": names, "tls": False})
        with _server(_command(server, options), options) as (pid, port):
            end(_measure(options, pid, port) | about)
    except Exception as error:
        fail(error, libraries)


def _compiled_version(program: str) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def _command(server: Path | None, options: argparse.Namespace) -> list[str]:
    if server is None:
        return [options.program, "--until-eof"]
    command = [sys.executable, str(server), "--loop", options.loop]
    if options.style is not None:
        command += ["--style", options.style]
    if options.workload.startswith("idle"):
        command += ["--ping-interval", "1"]
    if options.workload.startswith("fan-out"):
        command += ["--fan-out"]
    return command


@contextlib.contextmanager
def _server(command: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_pin(_server_core(options)),
    )
    try:
        line = child.stdout.readline() if child.stdout is not None else ""
        # The port alone, or behind `listening ws://127.0.0.1:`.
        port = line.strip().rpartition(":")[2]
        if not port.isdigit():
            raise RuntimeError("the server did not start")
        yield child.pid, int(port)
    finally:
        child.kill()
        child.wait()


def _server_core(options: argparse.Namespace) -> int | None:
    if options.core is None:
        return None
    # Where the harness has put its own server, which is idle now.
    cores = os.sched_getaffinity(options.server_pid) if options.server_pid is not None else {options.core}
    return min(cores) if len(cores) == 1 else options.core


def _pin(core: int | None) -> Callable[[], None] | None:
    return None if core is None else lambda: os.sched_setaffinity(0, {core})


def _measure(options: argparse.Namespace, pid: int, port: int) -> dict[str, object]:
    workload, path = WORKLOADS[options.workload]
    url = f"ws://127.0.0.1:{port}{path}"
    if workload == "idle":
        return _memory(url, ["--deflate"] if options.deflate else [], options, pid)
    program = [sys.executable, str(PICOWS_LOAD)] if workload == "picows" else [str(LOAD), "load"]
    command = [
        *program,
        *([] if workload == "picows" else ["--workload", workload]),
        *("--connections", str(options.connections)),
        *("--size", str(max(options.size, 8)), "--seconds", str(options.seconds), "--warmup", str(options.warmup)),
        url,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_pin(options.core)
    ) as load:
        begin = load.stdout.readline() if load.stdout is not None else ""
        before = process_cpu(pid)
        line = load.stdout.readline() if load.stdout is not None else ""
        after = process_cpu(pid)
        errors = load.stderr.read() if load.stderr is not None else ""
    if begin.strip() != "begin" or not line:
        raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else "the load generator has ended")
    answer = json.loads(line)
    used = 0.0 if before is None or after is None else after - before
    return {
        "count": answer["count"],
        "seconds": answer["seconds"],
        "user": answer.get("cpu", 0.0),
        "system": 0.0,
        "server": used,
        "checked": answer["checked"],
        "limited": answer.get("limited"),
        "p50": answer.get("p50"),
        "p99": answer.get("p99"),
    }


def _memory(url: str, arguments: list[str], options: argparse.Namespace, pid: int) -> dict[str, object]:
    started = time.perf_counter()
    with _idle(url, [*arguments, "--connections", str(FIRST)]):
        time.sleep(SETTLE_SECONDS)
        before = _resident(pid)
        with _idle(url, [*arguments, "--connections", str(options.connections)]):
            time.sleep(SETTLE_SECONDS)
            memory = _resident(pid) - before
    return {
        "count": options.connections,
        "seconds": time.perf_counter() - started,
        "user": 0.0,
        "system": 0.0,
        "server": None,
        "checked": True,
        "memory": memory,
    }


@contextlib.contextmanager
def _idle(url: str, arguments: list[str]) -> Iterator[None]:
    command = [str(LOAD), "load", "--workload", "idle", "--size", str(IDLE_SIZE), *arguments, url]
    load = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = load.stdout.readline() if load.stdout is not None else ""
        if line.strip() != "ready":
            raise RuntimeError("the connections could not be opened")
        yield
        if load.poll() is not None:
            raise RuntimeError("the server has closed idle connections")
    finally:
        load.kill()
        load.wait()


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
