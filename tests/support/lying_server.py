"""A server for the peers of the benchmarks that misbehaves on request: their checks must notice.

``python lying_server.py`` listens on ports of 127.0.0.1 and prints ``listening {NAME: PORT}`` in JSON. On the port
``ws`` it lies only where a request asks for it; on ``echo`` the path / always sends back other content; on ``plain`` no
compression is negotiated. It ends when its standard input does, so it cannot outlive the tests.

The paths are those of ``wirespeed-bench echo``. ``lie=NAME`` in the query requests a lie: about the message ``at=N``
alone, counted from 0; about all of them from ``since=N`` on; or about the first that comes ``after=S`` seconds after
the first one. At /sink and /hash a lie is about received messages, elsewhere about sent ones. The lies of ``TOLD`` are
in the server's summary of all messages, those of ``ENDS`` are those of a server that should have closed the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

SECOND = 1_000_000_000

# The positions of the times in a reply of /stamp: of receiving the message, and of sending the reply.
STAMPS = struct.Struct("<QQ")
STAMPS_AT = 8

# Messages of a stream after which arriving ones get a turn.
STREAM_PART = 64


def changed(message: str | bytes) -> str | bytes:
    """Returns other content of the same length; in a text the last digit is changed, so that JSON stays JSON."""
    if isinstance(message, bytes):
        return message[:-1] + bytes([message[-1] ^ 1])
    at = max(map(message.rfind, "0123456789"))
    return f"{message[:at]}{9 - int(message[at])}{message[at + 1 :]}"


def shifted(message: bytes, by: int) -> bytes:
    """Returns the same reply of /stamp by a clock that differs by this many nanoseconds."""
    stamps = (stamp + by for stamp in STAMPS.unpack_from(message, STAMPS_AT))
    return message[:STAMPS_AT] + STAMPS.pack(*stamps) + message[STAMPS_AT + STAMPS.size :]


# The treatments of a message. In `reorder`, the next one overtakes it.
LIES: dict[str, Callable[[Any], list[Any]]] = {
    "change": lambda message: [changed(message)],
    "lose": lambda message: [],
    "repeat": lambda message: [message, message],
    "short": lambda message: [message[:-1]],
    "text": lambda message: ["x" * len(message)],
    "binary": lambda message: [message.encode()],
    "behind": lambda message: [shifted(message, -SECOND)],
    "ahead": lambda message: [shifted(message, SECOND)],
    "reorder": lambda message: [],
}
TOLD = {"count", "digest"}
ENDS = {"stay", "talk"}


class Spoiler:
    """Applies lies to messages, one after the other."""

    def __init__(self, query: dict[str, str]) -> None:
        self._lie = query.get("lie", "")
        self._at = int(query.get("at", -1))
        self._since = float(query.get("since", "inf"))
        self._after = float(query.get("after", "inf"))
        self._begun = 0.0
        self._number = 0
        self._overtaken: list[str | bytes] = []

    def __call__(self, message: str | bytes) -> list[str | bytes]:
        number, self._number = self._number, self._number + 1
        if self._overtaken:
            overtaken, self._overtaken = self._overtaken, []
            return [message, *overtaken]
        if self._lie not in LIES or not self._is_due(number):
            return [message]
        if self._lie == "reorder":
            self._overtaken = [message]
        return LIES[self._lie](message)

    def _is_due(self, number: int) -> bool:
        now = time.monotonic()
        if number == 0:
            self._begun = now
        if now - self._begun >= self._after:
            self._after = float("inf")
            return True
        return number == self._at or number >= self._since


class Whole:
    """The counts and hashes of messages, and the summary of them."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.digest = hashlib.sha256()

    def take(self, message: str | bytes) -> None:
        payload = message.encode() if isinstance(message, str) else message
        self.messages += 1
        self.bytes += len(payload)
        self.digest.update(payload)

    def says(self, lie: str, *, digest: bool) -> str:
        if lie == "digest":
            self.digest.update(b"another")
        told: dict[str, object] = {"messages": self.messages - (lie == "count"), "bytes": self.bytes}
        return json.dumps(told | ({"sha256": self.digest.hexdigest()} if digest else {}))


def numbered(number: int, tail: bytes) -> bytes:
    return number.to_bytes(8, "little") + tail


def tail_of(size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[8:size]


async def echo(ws: ServerConnection, query: dict[str, str]) -> None:
    spoil = Spoiler(query)
    async for message in ws:
        for reply in spoil(message):
            await ws.send(reply)


async def stamp(ws: ServerConnection, query: dict[str, str]) -> None:
    spoil = Spoiler(query)
    async for message in ws:
        received = time.monotonic_ns()
        assert isinstance(message, bytes)
        head, tail = message[:STAMPS_AT], message[STAMPS_AT + STAMPS.size :]
        for reply in spoil(head + STAMPS.pack(received, time.monotonic_ns()) + tail):
            await ws.send(reply)


async def sink(ws: ServerConnection, query: dict[str, str], *, digest: bool = False) -> None:
    spoil, whole = Spoiler(query), Whole()
    async for message in ws:
        if message == "report":
            await ws.send(whole.says(query.get("lie", ""), digest=digest))
            continue
        for arrived in spoil(message):
            whole.take(arrived)


async def duplex(ws: ServerConnection, query: dict[str, str]) -> None:
    async def blast() -> None:
        spoil, tail = Spoiler(query), tail_of(int(query["size"]))
        with contextlib.suppress(ConnectionClosed):
            for number in count():
                for message in spoil(numbered(number, tail)):
                    await ws.send(message)
                if number % STREAM_PART == 0:
                    await asyncio.sleep(0)

    task = asyncio.create_task(blast())
    try:
        await sink(ws, {"lie": query.get("lie", "")})
    finally:
        task.cancel()


async def file(ws: ServerConnection, query: dict[str, str]) -> None:
    size, length = int(query["size"]), int(query["bytes"])
    tail = tail_of(size)
    while True:
        spoil, whole = Spoiler(query), Whole()
        for number in range(-(-length // size)):
            part = numbered(number, tail)[: length - number * size]
            whole.take(part)
            for message in spoil(part):
                await ws.send(message)
        await ws.send(whole.says(query.get("lie", ""), digest=True))
        await ws.recv()


async def close(ws: ServerConnection, query: dict[str, str]) -> None:
    lie = query.get("lie")
    if lie == "stay":
        await ws.wait_closed()
    while lie == "talk":
        await ws.send("still here")
        await asyncio.sleep(0.01)
    await ws.close(int(query["code"]))


PATHS: dict[str, Callable[[ServerConnection, dict[str, str]], Awaitable[None]]] = {
    "/": echo,
    "/stamp": stamp,
    "/sink": sink,
    "/hash": functools.partial(sink, digest=True),
    "/duplex": duplex,
    "/file": file,
    "/close": close,
}


async def handle(ws: ServerConnection, *, echo_lies: bool = False) -> None:
    assert ws.request is not None
    parts = urlsplit(ws.request.path)
    query = dict(parse_qsl(parts.query))
    if echo_lies and parts.path == "/":
        query = {"lie": "change", "since": "0"}
    lie = query.get("lie")
    if parts.path not in PATHS or (lie is not None and lie not in LIES.keys() | TOLD | ENDS):
        await ws.close(1008, "no such path, or no such lie")
        return
    with contextlib.suppress(ConnectionClosed):
        await PATHS[parts.path](ws, query)


async def main() -> None:
    # No pings of its own: a waiting peer must not receive anything else.
    listen = functools.partial(serve, host="127.0.0.1", port=0, max_size=None, ping_interval=None)
    async with (
        listen(handle) as ws,
        listen(functools.partial(handle, echo_lies=True)) as lying,
        listen(handle, compression=None) as plain,
    ):
        servers = {"ws": ws, "echo": lying, "plain": plain}
        ports = {name: next(iter(server.sockets)).getsockname()[1] for name, server in servers.items()}
        print(f"listening {json.dumps(ports)}", flush=True)
        await asyncio.Event().wait()


def end_with_stdin() -> None:
    """Ends the process when the parent ends in any way."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_stdin()
    asyncio.run(main())
