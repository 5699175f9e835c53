"""What open connections that do nothing cost in resident memory."""

import argparse
import asyncio
import gc
import os
import re
import resource
from pathlib import Path
from typing import Any

from models.connection import Connect
from models.content import ContentError
from models.crowd import open_all
from models.program import Window

__all__ = ["MESSAGE_BYTES", "measure"]

MESSAGE_BYTES = 256

# Opened before the first look: what a process needs once is not counted, nor what its allocator keeps for reuse.
FIRST = 100
SETTLE_SECONDS = 0.2
# Descriptors that are not connections.
SPARE = 64


async def measure(connect: Connect, message: Any, options: argparse.Namespace) -> dict[str, object]:
    """Opens connections, has a message echoed over each, lets them rest; `memory` is what all of them hold."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wanted = options.connections
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most - SPARE - FIRST)
    if wanted <= 0:
        raise OSError(f"only {most} descriptors are allowed (RLIMIT_NOFILE)")
    # A list of full length from the start: it must not grow in between.
    kept: list[object] = [None] * (FIRST + wanted)

    async def open_one(place: int) -> None:
        connection = await connect(options.url, options.ca, MESSAGE_BYTES)
        pending = connection.send(message)
        if pending is not None:
            await pending
        if await connection.recv() != connection.encode(message):
            raise ContentError("the echo of a message that was sent differs from it")
        kept[place] = connection.kept

    await open_all(open_one, range(FIRST))
    before = await _resident()
    window = Window(options)
    await open_all(open_one, range(FIRST, len(kept)))
    window.stop()
    return window.result(wanted, memory=await _resident() - before)


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
