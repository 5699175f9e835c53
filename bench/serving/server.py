"""What the programs of the server peers share: their command line, how they say where they listen, when they end."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from models import loops
from serving.load import FORMATS

__all__ = ["BACKLOG", "ROLES", "forever", "parse", "prepare", "ready", "report", "report_sum", "run"]

# What is done with messages. Servers that see the path of a request go by that: /, /sink, /fan-out.
ROLES = ("echo", "sink", "fan-out")

# Connections that the system keeps for the server to accept, in every server that has a setting for it: in a
# storm, those above it would wait for the next attempt of TCP, a second later, and not for the server.
BACKLOG = 4096


# So that sums fit into any number.
SUM_MODULUS = 1 << 32


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The server of a peer; prints its port, ends with its standard input.")
    parser.add_argument("--style")
    parser.add_argument("--loop", choices=loops.LOOPS, default="asyncio")
    parser.add_argument("--role", choices=ROLES, default="echo", help="what the path means, for servers that see none")
    parser.add_argument("--deflate", action="store_true", help="agree to permessage-deflate")
    parser.add_argument("--ping-interval", type=float, default=20.0, help="seconds between two pings to a client")
    parser.add_argument("--must-ping", action="store_true", help="for servers that send no pings unless they are told")
    parser.add_argument("--workers", type=int, default=1, help="threads that serve, 0: one for each core")
    parser.add_argument("--format", choices=FORMATS, default="binary", help="what messages are")
    parser.add_argument("--broker", help="URL of a broker that connects several servers")
    parser.add_argument("--certificate", help="PEM file with certificate and key: serve TLS")
    return parser.parse_args()


Count = Callable[[], dict[str, int]]


def prepare(count: Count | None = None) -> None:
    """Allows as many descriptors as the system does, and ends the process when standard input ends.

    Args:
        count: what each line of standard input is answered with.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    threading.Thread(target=_watch, args=[count], daemon=True).start()


def run(name: str, main: Callable[[], Coroutine[Any, Any, None]], count: Count | None = None) -> None:
    """Runs a server on a loop until standard input ends, as `prepare` says."""
    prepare(count)
    loops.run(name, main())


def ready(port: int, token: str | None = None) -> None:
    """Says where the server listens, and what token its clients need."""
    print(port if token is None else f"{port} {token}", flush=True)


def report(messages: int, size: int) -> str:
    """Returns the answer of a sink to a text message: what it has counted on that connection."""
    return json.dumps({"messages": messages, "bytes": size})


def report_sum(messages: int, numbers: int) -> str:
    """Returns the answer of a sink that decodes: how many, and the sum of the numbers that were in them."""
    return json.dumps({"messages": messages, "sum": numbers % SUM_MODULUS})


async def forever() -> None:
    """Waits until the process ends."""
    await asyncio.get_running_loop().create_future()


def _watch(count: Count | None) -> None:
    while sys.stdin.readline():
        if count is not None:
            print(json.dumps(count()), flush=True)
    os._exit(0)
