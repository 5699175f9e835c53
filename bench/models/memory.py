"""What open connections that do nothing cost in resident memory."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.awaiting import Connect
from models.content import ContentError, two_messages
from models.program import result
from models.usage import Usage

__all__ = ["measure"]

# Opened before the first look: what a process needs once is not counted, nor what its allocator keeps for
# reuse.
FIRST = 100
AT_ONCE = 32
SETTLE_SECONDS = 0.2
# Descriptors that are not connections.
SPARE = 64


async def measure(connect: Connect, options: argparse.Namespace, message: Any = None) -> dict[str, object]:
    """Opens connections, has a message echoed over each, lets them rest; `memory` is what all of them hold.

    The message is one of 256 bytes, if no other is given.
    """
    if message is None:
        message = two_messages(256)[0]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    wanted = options.connections
    if limit[1] != resource.RLIM_INFINITY:
        wanted = min(wanted, limit[1] - SPARE - FIRST)
    if wanted <= 0:
        raise OSError(f"only {limit[1]} descriptors are allowed (RLIMIT_NOFILE)")
    # A list of full length from the start: it must not grow in between.
    kept: list[object] = [None] * (FIRST + wanted)
    await _open(connect, options, message, kept, range(FIRST))
    before = await _resident()
    since = Usage.now(options.server_pid)
    await _open(connect, options, message, kept, range(FIRST, len(kept)))
    used = Usage.now(options.server_pid) - since
    return result(wanted, used, memory=await _resident() - before)


async def _open(connect: Connect, options: argparse.Namespace, message: Any, kept: list[object], places: range) -> None:
    async def fill(places: Iterator[int]) -> None:
        for place in places:
            connection = await connect(options.url, options.ca, len(message))
            pending = connection.send(message)
            if pending is not None:
                await pending
            if await connection.recv() != connection.encode(message):
                raise ContentError("the echo of a message that was sent differs from it")
            kept[place] = connection.connection

    remaining = iter(places)
    await asyncio.gather(*(fill(remaining) for _ in range(AT_ONCE)))


async def _resident() -> int:
    await asyncio.sleep(SETTLE_SECONDS)
    gc.collect()
    try:
        # The kernel counts here page by page; in statm it adds up counters that lag behind.
        match = re.search(r"^Rss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
        if match:
            return int(match[1]) * 1024
    except OSError:
        pass
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
