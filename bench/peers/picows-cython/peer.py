"""picows, its callbacks in Cython. It runs as a copy beside the extension that was compiled for it."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from models.asynchronous import Callbacks, main
from models.awaiting import Awaiting
from models.callbacks import Course
from models.one_way import OneWayCourse
from models.program import end
from peers.picows import peer as picows


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course."""
    import listeners

    classes = {"round-trip": listeners.RoundTrip, "pipelined": listeners.Pipelined, "stream-in": listeners.StreamIn}
    listener = listeners.OneWay if isinstance(course, OneWayCourse) else classes[course.workload]
    return await picows.open_with(listener(course), url, ca, size)


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects for the workload that sends without an answer, in a compiled loop."""
    import listeners

    awaiting = await picows.connect(url, ca, size)
    transport, _ = awaiting.connection
    return dataclasses.replace(awaiting, send_each=partial(listeners.send_each, transport))


if __name__ == "__main__":
    missing = Path(__file__).with_name("missing")
    if missing.exists():
        end({"skipped": missing.read_text()})
    main("picows", "picows", {"callbacks": Callbacks(listen, connect)}, helpers=("cython", "aiofastnet"))
