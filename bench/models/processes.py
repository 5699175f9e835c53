"""Many processes of the same peer, each with one connection, each as fast as it can, in windows that begin together."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from models.latency import Latencies

__all__ = ["WORKLOAD", "measure"]

WORKLOAD = "processes"

# From the word that all begin at a moment to that moment.
BEGIN_SECONDS = 0.05


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Starts `connections` children of this program that make round trips; returns what they have done together."""
    # Stopped by the harness: the children have to be, too.
    signal.signal(signal.SIGTERM, _stopped)
    command = [sys.executable, *sys.argv, "--workload", "round-trip", "--child"]
    with _children(command, options.connections) as children:
        for child in children:
            line = _line(child)
            if line != "ready":
                raise RuntimeError(_reason(line))
        begin = time.monotonic() + BEGIN_SECONDS
        for child in children:
            assert child.stdin is not None
            child.stdin.write(f"{begin!r}\n")
            child.stdin.flush()
        return _together([_answer(child) for child in children])


def _stopped(*arguments: object) -> NoReturn:
    raise SystemExit("stopped")


@contextlib.contextmanager
def _children(command: list[str], number: int) -> Iterator[list[subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []
    try:
        for _ in range(number):
            children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        yield children
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    line = _line(child)
    answer = json.loads(line) if line.startswith("{") else {}
    if answer.get("checked") is not True:
        raise RuntimeError(_reason(line))
    return dict(answer)


def _reason(line: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(line)
        return f"one of the processes: {answer.get('failed') or answer.get('skipped')}"
    return "one of the processes ended without a result"


def _together(answers: list[dict[str, Any]]) -> dict[str, object]:
    """Returns the sum of counts and CPU time in the longest window; latencies of all round trips of all of them."""
    servers = [answer["server"] for answer in answers if answer["server"] is not None]
    return {
        "count": sum(answer["count"] for answer in answers),
        "seconds": max(answer["seconds"] for answer in answers),
        "user": sum(answer["user"] for answer in answers),
        "system": sum(answer["system"] for answer in answers),
        # Each of them has looked at all that the server did in the window.
        "server": max(servers) if len(servers) == len(answers) else None,
        "checked": True,
        **Latencies(sample for answer in answers for sample in answer["samples"]).figures(),
    }
