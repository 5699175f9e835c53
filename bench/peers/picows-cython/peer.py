"""picows, its callbacks in Cython. It runs as a copy beside the extension that was compiled for it."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from models.callbacks import Course, OneWayCourse
from models.connection import Client, Connection
from models.peer import main
from models.program import Library, end
from peers.picows import peer as picows


async def listen(url: str, ca: str | None, size: int, course: Course) -> object:
    """Starts the course, with a read buffer that takes a whole message, as in the benchmark of the library's author."""
    import listeners

    kind = listeners.OneWay if isinstance(course, OneWayCourse) else listeners.Replying
    listener = kind(course) if course.replies else listeners.Streaming(course)
    return await picows.open_with(listener, url, ca, read_buffer_init_size=size + 1024)


async def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects for the workloads that send without an answer, in a compiled loop."""
    import listeners

    connection = await picows.connect(url, ca, size)
    transport, _ = connection.kept
    return dataclasses.replace(connection, send_each=partial(listeners.send_each, transport))


if __name__ == "__main__":
    missing = Path(__file__).with_name("missing")
    if missing.exists():
        end({"skipped": missing.read_text()})
    library = Library("picows", "picows", ("cython", "aiofastnet"))
    main(library, {"callbacks": Client(connect, listen=listen)})
