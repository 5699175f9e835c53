"""A server with small limits, in a process of its own: it echoes, with Python and without. It ends with its input.

It prints its port. Path ``/`` is handled by Python, ``/echo`` by the engine; ``/guarded`` is of another engine, on the
second port, which asks for tokens.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading

from wirespeed import InvalidState
from wirespeed.engine import JWT, Engine, Message

SECRET = "a secret of at least thirty-two bytes"


def drain(engine: Engine) -> None:
    for batch in engine.batches():
        for event in batch:
            if isinstance(event, Message):
                with contextlib.suppress(InvalidState, BlockingIOError):
                    event.session.send(event.data)


def main() -> None:
    # What it says of its attackers would come between the answers; of a defect it tells.
    logging.getLogger("wirespeed.engine").setLevel(logging.ERROR)
    limits = {
        "workers": 1,
        "compression": True,
        "open_timeout": 1.0,
        "close_timeout": 1.0,
        "outbox_limit": 2**20,
        "max_event_bytes": 4 * 2**20,
        "max_events": 4096,
    }
    engine = Engine("127.0.0.1", **limits)  # type: ignore[arg-type]
    engine.echo("/echo")
    guarded = Engine("127.0.0.1", auth=JWT(SECRET, "HS256"), **limits)  # type: ignore[arg-type]
    with engine, guarded:
        for one in (engine, guarded):
            threading.Thread(target=drain, args=[one]).start()
        print(engine.addresses[0][1], guarded.addresses[0][1], flush=True)
        for line in sys.stdin:
            print(engine.stats()[line.strip()], flush=True)


if __name__ == "__main__":
    main()
