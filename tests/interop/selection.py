"""Deselects tests by the options ``--matrix``, ``--rotation`` and ``--files``.

``--matrix=default`` leaves out the tests with the marker ``full_matrix``; ``--rotation N/M`` puts every M-th of them
back. ``--files N/M`` leaves out all files but every M-th, and keeps the files of ``INTERPRETER``. Tests and files are
chosen by a checksum of their names, so the same option always chooses the same tests.
"""

from __future__ import annotations

import zlib
from pathlib import PurePath

import pytest

__all__ = ["INTERPRETER", "Share", "select"]

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


class Share:
    """One of several equal shares of anything that has a name, written ``N/M``.

    Args:
        text: ``N/M``, for example ``3/12``; N counts from 0.

    Raises:
        ValueError: The text is not of this form.
    """

    def __init__(self, text: str) -> None:
        number, _, total = text.partition("/")
        if not (number.isdecimal() and total.isdecimal() and int(number) < int(total)):
            raise ValueError(f"{text!r} is not N/M with N less than M, for example 3/12")
        self.number, self.total = int(number), int(total)

    def __contains__(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self.total == self.number


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that the options leave out.

    Args:
        config: The configuration of this run.
        items: All collected tests; changed in place.

    Raises:
        pytest.UsageError: An option is not ``N/M``.
    """
    try:
        rotation, files = (
            Share(text) if (text := config.getoption(name)) else None for name in ("--rotation", "--files")
        )
    except ValueError as exc:
        raise pytest.UsageError(str(exc)) from None
    everything = config.getoption("--matrix") == "all"

    def is_chosen(item: pytest.Item) -> bool:
        path = PurePath(item.nodeid.partition("::")[0]).as_posix()
        if files is not None and path not in INTERPRETER and path not in files:
            return False
        if everything or item.get_closest_marker("full_matrix") is None:
            return True
        return rotation is not None and item.nodeid in rotation

    chosen = [item for item in items if is_chosen(item)]
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen
