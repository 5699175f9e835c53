"""Helpers of the engine tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from wirespeed.engine import Engine, Event
from wirespeed.sync import ClientConnection, connect

__all__ = ["dial", "running", "take", "uri"]


def uri(engine: Engine, path: str = "/") -> str:
    host, port = engine.addresses[0]
    return f"ws://{host}:{port}{path}"


def dial(engine: Engine, path: str = "/", **options: Any) -> ClientConnection:
    return connect(uri(engine, path), proxy=None, **options)


def take(engine: Engine, count: int) -> list[Event]:
    """Returns the next events; there must be this many."""
    events: list[Event] = []
    for batch in engine.batches(max_events=count, timeout=20):
        assert batch, f"only {events}"
        events += batch
        if len(events) >= count:
            break
    assert len(events) == count
    return events


@contextlib.contextmanager
def running(engine: Engine, *, threads: int = 0) -> Iterator[None]:
    """Calls the handlers in another thread."""
    engine.start()
    thread = threading.Thread(target=engine.run, kwargs={"threads": threads}, name="runs-engine")
    thread.start()
    try:
        yield
    finally:
        engine.stop()
        thread.join(30)
        assert not thread.is_alive()
