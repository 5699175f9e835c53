"""What the programs of the server peers share: their command line, how they say where they listen, when they end."""

import argparse
import asyncio
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from models.program import LOOPS, run_on
from serving.load import FORMATS

__all__ = [
    "BACKLOG",
    "ROLES",
    "TOKEN_SECONDS",
    "decoder",
    "forever",
    "parse",
    "prepare",
    "ready",
    "report",
    "report_sum",
    "run",
]

# What is done with messages. Servers that see the path of a request go by that: /, /sink, /fan-out.
ROLES = ("echo", "sink", "fan-out")
# Connections that the system keeps for the server to accept, in every server that has a setting for it: in a storm,
# those above it would wait for the next attempt of TCP, a second later, and not for the server.
BACKLOG = 4096
# For how long a token is valid: longer than any run.
TOKEN_SECONDS = 24 * 3600
# So that sums fit into any number.
SUM_MODULUS = 1 << 32

Count = Callable[[], dict[str, int]]


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The server of a peer; prints its port, ends with its standard input.")
    add = parser.add_argument
    add("--style", default="")
    add("--loop", choices=list(LOOPS), default="asyncio")
    add("--role", choices=ROLES, default="echo", help="what the path means, for servers that see none")
    add("--deflate", action="store_true", help="agree to permessage-deflate")
    add("--ping-interval", type=float, default=20.0, help="seconds between two pings to a client")
    add("--must-ping", action="store_true", help="for servers that send no pings unless they are told")
    add("--workers", type=int, default=1, help="threads that serve, 0: one for each core")
    add("--format", choices=FORMATS, default="binary", help="what messages are")
    add("--broker", help="URL of a broker that connects several servers")
    add("--certificate", help="PEM file with certificate and key: serve TLS")
    return parser.parse_args()


def prepare(count: Count | None = None) -> None:
    """Allows as many descriptors as the system does, and ends the process when standard input ends.

    Args:
        count: what each line of standard input is answered with.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def watch() -> None:
        while sys.stdin.readline():
            if count is not None:
                print(json.dumps(count()), flush=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def run(loop: str, main: Callable[[], Coroutine[Any, Any, None]], count: Count | None = None) -> None:
    """Runs a server on a loop until standard input ends, as `prepare` says."""
    prepare(count)
    run_on(loop, main())


def ready(port: int, token: str | None = None) -> None:
    """Says where the server listens, and what token its clients need."""
    print(port if token is None else f"{port} {token}", flush=True)


def report(messages: int, size: int) -> str:
    """Returns the answer of a sink to a text message: what it has counted on that connection."""
    return json.dumps({"messages": messages, "bytes": size})


def report_sum(messages: int, numbers: int) -> str:
    """Returns the answer of a sink that decodes: how many, and the sum of the numbers that were in them."""
    return json.dumps({"messages": messages, "sum": numbers % SUM_MODULUS})


def decoder(form: str) -> Callable[[bytes], Any]:
    """Returns what makes an object with an attribute `number` of a document of the load generator, in that form."""
    # Who does not decode has not loaded it.
    import msgspec

    fields = [("kind", str), ("number", int), ("tags", list[str]), ("text", str), ("value", float)]
    kind = {"json-bytes": msgspec.json, "msgpack": msgspec.msgpack}[form]
    decode: Callable[[bytes], Any] = kind.Decoder(msgspec.defstruct("Update", fields)).decode
    return decode


def handlers(broadcast: Callable[[Any, Any], object]) -> dict[str, Callable[[Any], Coroutine[Any, Any, None]]]:
    """Returns what a server with the interface of websockets does at each path."""
    everybody: set[Any] = set()

    async def echo(ws: Any) -> None:
        async for message in ws:
            await ws.send(message)

    async def sink(ws: Any) -> None:
        messages = size = 0
        async for message in ws:
            if isinstance(message, bytes):
                messages += 1
                size += len(message)
            else:
                await ws.send(report(messages, size))

    async def fan_out(ws: Any) -> None:
        everybody.add(ws)
        try:
            async for message in ws:
                broadcast(everybody, message)
        finally:
            everybody.discard(ws)

    return {"/": echo, "/sink": sink, "/fan-out": fan_out}


async def forever() -> None:
    """Waits until the process ends."""
    await asyncio.get_running_loop().create_future()
