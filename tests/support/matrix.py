"""Chooses the settings of the asyncio tests: event loops and I/O backends.

The full matrix runs each test of ``tests/asyncio`` in every setting of its module's ``SETTINGS`` (all settings if the
module has none), except the files of ``ONE_PER_BACKEND``. The default matrix runs each test in one setting for each I/O
backend. Tests of the full matrix that are not in the default matrix carry the marker ``full_matrix``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from .asyncio_tools import SETTINGS, WATCHING, Setting

__all__ = ["ONE_PER_BACKEND", "WATCHED", "choose", "one_per_backend"]

# Tests of handshakes, TLS and frames. They run in one setting for each I/O backend in the full matrix too, because this
# code does not depend on the loop. A loop has its own way of reading, writing, ending and timing a connection:
# test_client_ending, _flow, _faults, _lost, _cancellation, _tasks, _wakeups, _keepalive, _resources, test_server,
# _broadcast, _flood and the streams run in every setting.
ONE_PER_BACKEND = frozenset(
    {
        "test_client_batches",
        "test_client_closing",
        "test_client_codecs",
        "test_client_compression",
        "test_client_foreign_thread",
        "test_client_fragments",
        "test_client_limits",
        "test_client_listener",
        "test_client_messages",
        "test_client_native_echo",
        "test_client_tls",
        "test_client_tls_faults",
        "test_connect",
        "test_connect_cancel",
        "test_connect_routes",
        "test_connect_tls",
        "test_server_closing",
        "test_server_pending_handshake",
        "test_server_handshake",
        "test_server_limits",
        "test_server_listener",
        "test_server_tls",
    }
)


# Files that also run on a loop that wirespeed does not know. There the loop watches each connection's socket itself;
# on known loops wirespeed registers one epoll descriptor for all connections.
WATCHED = frozenset(
    {
        "test_client_cancellation",
        "test_client_ending",
        "test_client_flow",
        "test_client_keepalive",
        "test_client_lost",
        "test_client_nesting",
        "test_client_resources",
        "test_client_wakeups",
        "test_early_exit",
        "test_server",
        "test_server_flood",
        "test_stream",
        "test_stream_ending",
    }
)


def one_per_backend(test: str, settings: Sequence[Setting] = SETTINGS) -> list[Setting]:
    """Return one setting for each I/O backend. The loop depends on the name of the test and is the same in every run.

    Args:
        test: Name of the test function.
        settings: The settings to choose from.
    """
    turn = zlib.crc32(test.encode())
    by_port: dict[str, list[Setting]] = {}
    for setting in settings:
        by_port.setdefault(setting.io_backend, []).append(setting)
    return [found[turn % len(found)] for found in by_port.values()]


def choose(module: ModuleType, test: str) -> list[Any]:
    """Return the settings of a test as parameters; those beyond the default matrix are marked ``full_matrix``.

    Args:
        module: The module of the test.
        test: Name of the test function.
    """
    name = module.__name__.rpartition(".")[2]
    settings: Sequence[Setting] = getattr(module, "SETTINGS", SETTINGS)
    chosen = one_per_backend(test, settings)
    if name in ONE_PER_BACKEND:
        settings = chosen
    if name in WATCHED:
        chosen = [*chosen, *one_per_backend(test, WATCHING)]
        settings = [*settings, *WATCHING]
    others = [pytest.param(setting, marks=pytest.mark.full_matrix) for setting in settings if setting not in chosen]
    return [*chosen, *others]
