"""The attacker's process: ``child.py attacker ROW KIND PORT``. It begins when asked, and ends when asked again."""

from __future__ import annotations

import json
import sys
import threading

from interop.flood import raise_descriptors

from .answering import answer
from .table import attack_of
from .target import Target

__all__ = ["main"]


def main(row: str, kind: str, port: str) -> None:
    raise_descriptors(10_000)
    attack = attack_of(row)
    target = Target(kind, int(port))
    # What takes long to make is made.
    steps = attack(target)
    answer({"ready": True})
    json.loads(sys.stdin.readline())
    enough = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        enough.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        while not enough.is_set():
            try:
                next(steps)
                target.tally["steps"] += 1
            except OSError:
                # It was thrown out, and comes again.
                target.tally["thrown_out"] += 1
                steps = attack(target)
    finally:
        steps.close()  # type: ignore[attr-defined]
    answer(dict(target.tally))
