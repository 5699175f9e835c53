"""The program around what the Python peers do: command line, versions, event loops, clocks, the line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

__all__ = [
    *("LOOPS", "STEP_SECONDS", "Library", "Window", "can_fork", "echo_url", "end", "fail", "once_or_forking"),
    *("parser", "process_cpu", "run_on", "run_program", "version"),
]

# A step is what runs between two looks at the clock, and between two checks of a stream.
STEP_SECONDS = 0.005
POLL_SECONDS = 0.01
# Asks for a process that forks, see `once_or_forking`.
FORKS = "--forks"


@dataclass(frozen=True)
class Library:
    """What a peer measures.

    Attributes:
        module: what the peer needs to import; where it is not installed, the peer reports itself as skipped.
        distribution: its name on PyPI, whose version is reported; None for a peer of the standard library.
        helpers: distributions that make it faster; reported with the version if they are installed.
    """

    module: str
    distribution: str | None
    helpers: tuple[str, ...] = ()

    def version(self, *, load: bool = True) -> str:
        """Returns its version with those of its helpers; imports it on request, so that a broken peer fails now."""
        loaded = importlib.import_module(self.module) if load else None
        if self.distribution is None:
            return sys.version.split()[0]
        version = _installed(self.distribution) or str(getattr(loaded, "__version__", "unknown"))
        helpers = [f"{name} {_installed(name)}" for name in self.helpers if _installed(name)]
        return version + (f" with {', '.join(helpers)}" if helpers else "")


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version(libraries: Sequence[Library], *, load: bool = True) -> str:
    """Returns the versions of a library and what it runs on in one line."""
    first, *others = libraries
    return " on ".join([first.version(load=load), *(f"{one.module} {one.version(load=load)}" for one in others)])


LOOPS: dict[str, Library | None] = {
    "asyncio": None,
    "uvloop": Library("uvloop", "uvloop"),
    "rloop": Library("rloop", "rloop"),
    "run": Library("wirespeed", "wirespeed"),
    "polling": Library("wirespeed", "wirespeed"),
}
"""The event loops by the names of scenarios, and what they need: the standard library's, two others, wirespeed.run, and
that polling for POLL_SECONDS before it sleeps.
"""


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on a loop of that name."""
    if loop in ("run", "polling"):
        importlib.import_module("wirespeed").run(main, busy_poll=POLL_SECONDS if loop == "polling" else 0.0)
        return
    factory = asyncio.SelectorEventLoop if loop == "asyncio" else importlib.import_module(loop).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def parser(workloads: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the command line that every peer has."""
    parser = argparse.ArgumentParser(description="A peer of the benchmarks; prints one JSON line. See METHODOLOGY.md.")
    add = parser.add_argument
    add("--probe", action="store_true", help="print version and workloads, measure nothing")
    add("--url", default="ws://127.0.0.1:8765/")
    add("--workload", default=workloads[0], choices=sorted(workloads))
    add("--loop", choices=list(LOOPS), default="asyncio", help="the event loop")
    add("--size", type=int, default=256, help="bytes of a message")
    add("--seconds", type=float, default=1.0, help="length of the window")
    add("--warmup", type=float, default=0.3, help="seconds before the window")
    add("--batch", type=int, default=1024, help="messages per call of recv_many and send_many")
    add("--window", type=int, default=100, help="messages under way at once, where there are several")
    add("--connections", type=int, default=1000, help="connections at once, where there are many")
    add("--bytes", type=int, default=64 << 20, help="bytes of a whole transfer")
    add("--content", choices=["repetitive", "random"], default="repetitive", help="what text is made of")
    add("--document", choices=["tick", "book"], default="tick", help="what codecs encode")
    add("--deflate", action="store_true", help="offer permessage-deflate")
    add("--rate", type=float, help="operations a second that are offered")
    add("--ca", help="PEM file of the CA to trust")
    add("--core", type=int, help="the core to run on")
    add("--server-pid", type=int, help="the process whose CPU time counts as the server's")
    return parser


def once_or_forking(run: Callable[[Sequence[str]], NoReturn], load: Callable[[Sequence[str]], None]) -> NoReturn:
    """Runs a peer with its command line; or, where that ends with --forks, for each line of standard input.

    Such a line is a list of further options. Each run is a process of its own, forked from this one, which has loaded
    what they need and does nothing else: what a program loads is no part of any window, and takes about as long as one.
    Says how each has ended.
    """
    given = sys.argv[1:]
    if not given or given.pop() != FORKS:
        run(sys.argv[1:])
    load(given)
    # It goes when its standard input ends; whom a signal is meant for is the one that runs.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Collects garbage, which writes to all objects: their pages are copied now, not within a measurement.
            gc.collect()
            sys.exit(run([*given, *json.loads(line)]))
        print("\n" + json.dumps({"ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}), flush=True)
    os._exit(0)


def can_fork() -> bool:
    """Tells whether what is loaded by now has started no threads, which a forked process lacks."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def run_program(
    options: argparse.Namespace,
    libraries: Sequence[Library],
    workloads: Sequence[str],
    measure: Callable[[argparse.Namespace], dict[str, object]],
) -> NoReturn:
    """Measures, or answers --probe, for a library, the first one, on others; prints one JSON line, ends the process."""
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    try:
        about = {"version": version(libraries)}
        if options.probe:
            end(about | {"workloads": list(workloads), "tls": True, "forks": can_fork()})
        end(about | measure(options))
    except Exception as error:
        fail(error, libraries)


def fail(error: Exception, libraries: Sequence[Library] = ()) -> NoReturn:
    """Ends the process with the reason why there is no figure."""
    if isinstance(error, ModuleNotFoundError):
        for one in libraries:
            if error.name == one.module:
                end({"skipped": f"{one.distribution or one.module} is not installed for {sys.executable}"})
    # Of tasks that failed together the first: one connection has one fault.
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    end({"failed": f"{type(error).__name__}: {error}"})


def end(answer: dict[str, object]) -> NoReturn:
    """Prints the answer and ends the process at once.

    A closing handshake with a server in full flow would cost each peer a different time and measures nothing.
    """
    print(json.dumps(answer), flush=True)
    os._exit("failed" in answer)


def echo_url(url: str) -> str:
    """Returns the URL of the path that sends messages back, at the same server."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


class Window:
    """What a window costs: wall time, CPU time of all threads of this process, CPU time of the server, in seconds.

    Clocks are read at both ends, never inside.

    Attributes:
        end: when it is to be over, by `time.perf_counter`.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._pid: int | None = options.server_pid
        self._used: dict[str, float | None] | None = None
        self._since = self._look()
        self.end: float = time.perf_counter() + options.seconds

    def stop(self) -> float:
        """Ends it, unless that was done; returns its wall time."""
        if self._used is None:
            now = self._look()
            self._used = {
                name: None if None in (one, now[name]) else now[name] - one for name, one in self._since.items()
            }
        return self._used["seconds"] or 0.0

    def result(self, count: int, **more: object) -> dict[str, object]:
        """Returns the answer of a window whose messages were checked."""
        self.stop()
        return {"count": count, **(self._used or {}), "checked": True, **more}

    def _look(self) -> dict[str, Any]:
        server = None if self._pid is None else process_cpu(self._pid)
        own = resource.getrusage(resource.RUSAGE_SELF)
        return {"seconds": time.perf_counter(), "user": own.ru_utime, "system": own.ru_stime, "server": server}


def process_cpu(pid: int) -> float | None:
    """Returns the CPU seconds that all threads of a process have used; None where /proc does not tell."""
    try:
        # Nanoseconds on the CPU. /proc/PID/stat counts in ticks of 10 ms: too coarse for a short window.
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
        nanoseconds = sum(int(thread.read_text().split()[0]) for thread in threads)
        if nanoseconds:
            return nanoseconds / 1e9
        # The name in parentheses may contain spaces; utime and stime are fields 14 and 15, 12 and 13 after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
