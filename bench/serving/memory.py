"""What idle connections cost a server in resident memory."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from serving.load import Load, require_descriptors
from serving.process import ChildError, started

__all__ = ["measure_memory"]

# Opened before the first look at the memory: what a process needs once is not counted.
FIRST = 100
# Large enough to be compressed where that is agreed on, and no larger: handlers that wait still hold the last
# message.
SIZE = 256


def measure_memory(load: Load, pid: int, options: argparse.Namespace) -> dict[str, object]:
    """Has connections opened that have one message echoed, lets them rest; `memory` is what the server holds for them.

    They rest for `options.settle` seconds: for what a server releases when a connection is idle.

    Raises:
        ChildError: connections cannot be opened, or do not stay open.
    """
    require_descriptors(FIRST + options.connections, load.descriptors)
    started_at = time.perf_counter()
    with _idle(load, FIRST):
        time.sleep(options.settle)
        before = _resident(pid)
        with _idle(load, options.connections):
            time.sleep(options.settle)
            memory = _resident(pid) - before
    return {
        "count": options.connections,
        "seconds": time.perf_counter() - started_at,
        "user": 0.0,
        "system": 0.0,
        "server": None,
        "checked": True,
        "memory": memory,
    }


@contextlib.contextmanager
def _idle(load: Load, connections: int) -> Iterator[None]:
    command = load.command("idle", connections=connections, size=SIZE, seconds=None, warmup=None)
    # On no core of its own: nothing is measured while they are opened.
    with started(command, None, "the load generator") as child:
        if child.line().strip() != "ready":
            child.has_ended()
            reason = child.last_error().removeprefix("wirespeed-bench: ")
            raise ChildError(f"the connections could not be opened: {reason}")
        yield
        if child.has_ended(0.0):
            raise child.failure("lost idle connections")


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
