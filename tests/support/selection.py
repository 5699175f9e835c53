"""Deselects tests by the options ``--rotation`` and ``--files``.

A run leaves out the tests with the marker ``full_matrix``; ``--rotation N/M`` puts every M-th of them back, and
``--rotation 0/1`` all. ``--files N/M`` leaves out all files but every M-th, and keeps the files of ``INTERPRETER``.
Tests and files are chosen by a checksum of their names, so the same option always chooses the same tests.
"""

from __future__ import annotations

from pathlib import PurePath

import pytest

from .samples import Share

__all__ = ["INTERPRETER", "select"]

# Files that take longest, the longest first. They begin a run, so that no worker is busy when the others have finished.
LONGEST = (
    "tests/asyncio/test_loop_stdlib.py",
    "tests/asyncio/test_server_flood.py",
    "tests/bench/test_workloads.py",
    "tests/asyncio/test_client_flow.py",
    "tests/asgi/test_ending.py",
    "tests/bench/test_bench.py",
    "tests/test_conformance.py",
    "tests/engine/test_stopping.py",
    "tests/asgi/test_events.py",
    "tests/test_retry_failed.py",
    "tests/engine/test_broker.py",
    "tests/engine/test_publisher.py",
    "tests/test_exit.py",
    "tests/bench/test_instructions.py",
    "tests/asgi/test_load.py",
    "tests/bench/test_lies.py",
)

# Files whose subject depends on the version of Python: exit, fork, signals, exceptions, tasks, exports.
INTERPRETER = frozenset(
    {
        "tests/asyncio/test_client_cancellation.py",
        "tests/asyncio/test_client_tasks.py",
        "tests/asyncio/test_client_types.py",
        "tests/asyncio/test_client_wakeups.py",
        "tests/asyncio/test_loop_stdlib.py",
        "tests/asyncio/test_started_tasks.py",
        "tests/sync/test_client_signals.py",
        "tests/sync/test_client_types.py",
        "tests/test_exceptions.py",
        "tests/test_exit.py",
        "tests/test_exports.py",
        "tests/test_fork.py",
        "tests/test_imports.py",
    }
)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that the options leave out, and let the longest files begin.

    Args:
        config: The configuration of this run.
        items: All collected tests; changed in place.
    """
    rotation, files = (Share(text) if (text := config.getoption(name)) else None for name in ("--rotation", "--files"))

    def is_chosen(item: pytest.Item) -> bool:
        path = PurePath(item.nodeid.partition("::")[0]).as_posix()
        if files is not None and path not in INTERPRETER and path not in files:
            return False
        if item.get_closest_marker("full_matrix") is None:
            return True
        return rotation is not None and item.nodeid in rotation

    chosen = [item for item in items if is_chosen(item)]
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    places = {path: place for place, path in enumerate(LONGEST)}
    chosen.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONGEST)))
    items[:] = chosen
