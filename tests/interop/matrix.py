"""How much of the matrix of event loops and ports is run: the one place that chooses.

A module of ``tests/asyncio`` runs in the settings of its ``SETTINGS``, without that in every one. ``--matrix=all`` is
that but for what would be double, below; ``--matrix=default`` is one setting of each port for everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import ModuleType

from .asyncio_tools import SETTINGS, Setting

__all__ = ["ONE_PER_PORT", "choose", "one_per_port"]

# Files that run on every loop together, and each of their tests on one loop for each port, in the whole
# matrix too. A loop has its own way of reading, writing, ending and timing a connection. For that,
# test_client_ending, _flow, _faults, _lost, _cancellation, _tasks, _wakeups, _keepalive, _resources,
# test_server, _broadcast, _flood and the streams run in every setting. What is here lies above: the
# handshakes, TLS and what frames mean are the same code whichever loop has brought the bytes.
ONE_PER_PORT = frozenset(
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
        "test_server_greeting",
        "test_server_handshake",
        "test_server_limits",
        "test_server_listener",
        "test_server_tls",
    }
)


def one_per_port(test: str, settings: Sequence[Setting] = SETTINGS) -> list[Setting]:
    """Of the settings one for each port. Their loops change from test to test, and are the same in every run.

    So the tests of a file meet every loop together, and each of them meets both ways to the socket.
    """
    turn = zlib.crc32(test.encode())
    by_port: dict[str, list[Setting]] = {}
    for setting in settings:
        by_port.setdefault(setting.port, []).append(setting)
    return [found[turn % len(found)] for found in by_port.values()]


def choose(module: ModuleType, test: str, matrix: str) -> Sequence[Setting]:
    """The settings in which a test of a module runs."""
    settings: Sequence[Setting] = getattr(module, "SETTINGS", SETTINGS)
    if matrix == "all" and module.__name__.rpartition(".")[2] not in ONE_PER_PORT:
        return settings
    return one_per_port(test, settings)
