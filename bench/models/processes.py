"""Many processes of the same peer, each with one connection, each as fast as it can, in windows that begin together."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import IO, Any, NoReturn

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
    with contextlib.ExitStack() as stack:
        pipes: list[tuple[IO[str], IO[str]]] = []
        for _ in range(options.connections):
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(child.wait)
            stack.callback(child.kill)
            pipes.append((child.stdin, child.stdout))  # type: ignore[arg-type]
        for _, out in pipes:
            if (line := out.readline().strip()) != "ready":
                raise RuntimeError(_reason(line))
        begin = time.monotonic() + BEGIN_SECONDS
        for into, _ in pipes:
            into.write(f"{begin!r}\n")
            into.flush()
        return _together([_answer(out.readline().strip()) for _, out in pipes])


def _stopped(*arguments: object) -> NoReturn:
    raise SystemExit("stopped")


def _answer(line: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
    if answer.get("checked") is not True:
        raise RuntimeError(_reason(line))
    return answer


def _reason(line: str) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(line)
        return f"one of the processes: {answer.get('failed') or answer.get('skipped')}"
    return "one of the processes ended without a result"


def _together(answers: list[dict[str, Any]]) -> dict[str, object]:
    """Returns the sum of counts and CPU time in the longest window; latencies of all round trips of all of them."""
    servers = [answer["server"] for answer in answers]
    return {
        **{name: sum(answer[name] for answer in answers) for name in ("count", "user", "system")},
        "seconds": max(answer["seconds"] for answer in answers),
        # Each of them has looked at all that the server did in the window.
        "server": None if None in servers else max(servers),
        "checked": True,
        **Latencies(sample for answer in answers for sample in answer["samples"]).figures(),
    }
