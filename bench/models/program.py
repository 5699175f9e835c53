"""The program around the measuring loops of the Python peers: command line, versions, the JSON line."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

from models.usage import Usage

__all__ = [
    "CONTENTS",
    "STEP_SECONDS",
    "Library",
    "echo_url",
    "end",
    "fail",
    "gate",
    "main",
    "parser",
    "result",
    "version",
]

# A step is what runs between two looks at the clock, and between two checks of a stream.
STEP_SECONDS = 0.005

# What one of several processes may take beyond its window: to check, and to tell.
CHILD_SECONDS = 30

# What messages may be made of, where that matters: `binary` is what `content.two_messages` makes.
CONTENTS = ("binary", "repetitive", "random")


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

    def version(self) -> str:
        """Imports the library and returns its version with those of its helpers."""
        loaded = importlib.import_module(self.module)
        if self.distribution is None:
            return sys.version.split()[0]
        version = _installed(self.distribution) or str(getattr(loaded, "__version__", "unknown"))
        helpers = [f"{name} {_installed(name)}" for name in self.helpers if _installed(name)]
        return version + (f" with {', '.join(helpers)}" if helpers else "")


def parser(workloads: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the command line that every peer has."""
    parser = argparse.ArgumentParser(description="A peer of the benchmarks; prints one JSON line. See METHODOLOGY.md.")
    parser.add_argument("--probe", action="store_true", help="print version and workloads, measure nothing")
    parser.add_argument("--url", default="ws://127.0.0.1:8765/")
    parser.add_argument("--workload", default="round-trip", choices=sorted(workloads))
    parser.add_argument("--size", type=int, default=256, help="bytes of a message")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of the window")
    parser.add_argument("--warmup", type=float, default=0.3, help="seconds before the window")
    parser.add_argument("--batch", type=int, default=1024, help="messages per call of recv_many and send_many")
    parser.add_argument("--window", type=int, default=100, help="messages under way at once, when pipelined; even")
    parser.add_argument("--connections", type=int, default=1000, help="connections at once, where there are many")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="bytes of a whole transfer")
    parser.add_argument("--content", choices=CONTENTS, default="binary", help="what the messages are made of")
    parser.add_argument("--deflate", action="store_true", help="offer permessage-deflate")
    parser.add_argument("--rate", type=float, help="operations a second that are offered")
    parser.add_argument("--ca", help="PEM file of the CA to trust")
    parser.add_argument("--core", type=int, help="the core to run on")
    parser.add_argument("--child", action="store_true", help="be one of several: begin when told to, tell all samples")
    parser.add_argument("--server-pid", type=int, help="the process whose CPU time counts as the server's")
    return parser


def main(
    options: argparse.Namespace,
    libraries: Sequence[Library],
    workloads: Sequence[str],
    measure: Callable[[argparse.Namespace], dict[str, object]],
) -> NoReturn:
    """Runs a peer program: measures, or answers --probe; prints one JSON line, ends the process.

    Args:
        options: the parsed command line.
        libraries: what must be installed: the measured one, then what it runs on.
        workloads: what the library can do.
        measure: runs the workload that the options name and returns its `result`, or hands that to `end`.
    """
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    try:
        about = {"version": version(libraries)}
        if options.probe:
            end(about | {"workloads": list(workloads), "tls": True})
        end(measure(options) | about)
    except Exception as error:
        fail(error, libraries)


def version(libraries: Sequence[Library]) -> str:
    """Imports the libraries and returns their versions in one line."""
    return " on ".join([libraries[0].version(), *(f"{one.module} {one.version()}" for one in libraries[1:])])


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


def result(count: int, used: Usage, **more: object) -> dict[str, object]:
    """Returns the answer of a window whose messages were checked."""
    return {
        "count": count,
        "seconds": used.wall,
        "user": used.user,
        "system": used.system,
        "server": used.server,
        "checked": True,
        **more,
    }


def end(answer: dict[str, object]) -> NoReturn:
    """Prints the answer and ends the process at once.

    A closing handshake with a server in full flow would cost each peer a different time and measures nothing.
    """
    print(json.dumps(answer), flush=True)
    os._exit("failed" in answer)


def gate(options: argparse.Namespace) -> None:
    """Where several processes measure at once: says that this one is warm, waits for the moment that all begin at."""
    if not options.child:
        return
    # If nobody looks after this process any more, it ends nevertheless.
    signal.alarm(math.ceil(2 * options.seconds) + CHILD_SECONDS)
    print("ready", flush=True)
    line = sys.stdin.readline()
    if not line:
        raise RuntimeError("the process that should say when to begin has ended")
    time.sleep(max(0.0, float(line) - time.monotonic()))


def echo_url(url: str) -> str:
    """Returns the URL of the path that sends messages back, at the same server."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
