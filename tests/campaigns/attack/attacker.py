"""The attacker, a program: ``attacker ROW KIND PORT``. It begins at the first question, and ends at
the second.
"""

from __future__ import annotations

import json
import sys
import threading

from campaigns.common.program import answer
from support.flood import raise_descriptors

from .table import attack_of
from .target import Target


def main(row: str, kind: str, port: str) -> None:
    raise_descriptors(10_000)
    attack = attack_of(row)
    target = Target(kind, int(port))
    # Slow preparations are done now.
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
                # The client was disconnected, and connects again.
                target.tally["thrown_out"] += 1
                steps = attack(target)
    finally:
        steps.close()  # type: ignore[attr-defined]
    answer(dict(target.tally))
