"""Connections opened and closed one after the other, for what awaits and what blocks.

The time of an opening is that of `connect`, until the connection can be used; the rate is that of the whole: opening,
an echo that is checked, closing.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from models.awaiting import Connect
from models.content import ContentError, two_messages
from models.latency import Latencies
from models.program import result
from models.usage import Usage

if TYPE_CHECKING:
    from models import blocking as shared

__all__ = ["WORKLOAD", "awaiting", "blocking"]

WORKLOAD = "open"

MESSAGE_BYTES = 16


async def awaiting(connect: Connect, options: argparse.Namespace) -> dict[str, object]:
    """Opens and closes connections for one window, after a warm-up."""
    message = two_messages(MESSAGE_BYTES)[0]
    end = time.perf_counter() + options.warmup
    while True:
        await _await_one(connect, options, message)
        if time.perf_counter() >= end:
            break
    times: list[int] = []
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    while time.perf_counter() < end:
        times.append(await _await_one(connect, options, message))
    return _result(times, Usage.now(options.server_pid) - since)


async def _await_one(connect: Connect, options: argparse.Namespace, message: bytes) -> int:
    before = time.perf_counter_ns()
    connection = await connect(options.url, options.ca, len(message))
    taken = time.perf_counter_ns() - before
    pending = connection.send(message)
    if pending is not None:
        await pending
    if await connection.recv() != connection.encode(message):
        raise ContentError("the echo of a message that was sent differs from it")
    pending = _close_of(connection)()
    if pending is not None:
        await pending
    return taken


def blocking(connect: shared.Connect, options: argparse.Namespace) -> dict[str, object]:
    """Opens and closes connections for one window, after a warm-up."""
    message = two_messages(MESSAGE_BYTES)[0]
    end = time.perf_counter() + options.warmup
    while True:
        _block_one(connect, options, message)
        if time.perf_counter() >= end:
            break
    times: list[int] = []
    since = Usage.now(options.server_pid)
    end = since.wall + options.seconds
    while time.perf_counter() < end:
        times.append(_block_one(connect, options, message))
    return _result(times, Usage.now(options.server_pid) - since)


def _block_one(connect: shared.Connect, options: argparse.Namespace, message: bytes) -> int:
    before = time.perf_counter_ns()
    connection = connect(options.url, options.ca, len(message))
    taken = time.perf_counter_ns() - before
    sent, expected = connection.encode(message)
    connection.send(sent)
    if connection.recv() != expected:
        raise ContentError("the echo of a message that was sent differs from it")
    _close_of(connection)()
    return taken


def _close_of(connection: Any) -> Any:
    if connection.close is None:
        raise TypeError("this peer does not say how it closes a connection")
    return connection.close


def _result(times: list[int], used: Usage) -> dict[str, object]:
    return result(len(times), used, **Latencies(times).figures())
