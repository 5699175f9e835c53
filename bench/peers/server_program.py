"""What the programs of the server peers share: their command line, how they say where they listen, when they end."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from peers import loops

__all__ = ["forever", "parse", "prepare", "ready", "run"]


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The server of a peer; prints its port, ends with its standard input.")
    parser.add_argument("--style")
    parser.add_argument("--loop", choices=loops.LOOPS, default="asyncio")
    parser.add_argument("--ping-interval", type=float, default=20.0)
    parser.add_argument("--fan-out", action="store_true", help="the path is /fan-out, for servers that see none")
    return parser.parse_args()


def prepare() -> None:
    """Allows as many descriptors as the system does, and ends the process when standard input ends."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    threading.Thread(target=_watch, daemon=True).start()


def run(name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a server on a loop until standard input ends."""
    prepare()
    loops.run(name, main())


def ready(port: int) -> None:
    """Says where the server listens."""
    print(port, flush=True)


async def forever() -> None:
    """Waits until the process ends."""
    await asyncio.get_running_loop().create_future()


def _watch() -> None:
    sys.stdin.read()
    os._exit(0)
