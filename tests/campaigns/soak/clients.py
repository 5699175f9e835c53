"""The clients under test, each a program: ``clients NAME SEED GOOD BAD``, with the ports of two servers.

They connect to either repeatedly, exchange some messages, and leave in every possible way.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import logging
import random
import tempfile
import threading
from pathlib import Path
from typing import Any

import wirespeed
from campaigns.common.program import serve_in_thread
from wirespeed.sync import connect as connect_blocking

from .counting import Figures, figures_of_loop, objects

AT_ONCE = 6
OPTIONS: dict[str, Any] = {
    "proxy": None, "open_timeout": 2.0, "close_timeout": 1.0, "ping_interval": 1.0, "ping_timeout": 1.0,
}  # fmt: skip
CONNECTIONS = ("ClientConnection", "AsyncConnection", "BlockingConnection")
# Exceptions that a server may cause: any other is a defect.
EXPECTED = (OSError, wirespeed.WebSocketException, TimeoutError, EOFError)
BODIES: list[str | bytes] = ["x", "x" * 1000, b"x" * 70_000]

# Received answers, by the address of the server.
answers: collections.Counter[str] = collections.Counter()


def address(port: int) -> str:
    return f"ws://127.0.0.1:{port}/"


def somewhere(ports: list[int]) -> str:
    # Most peers are honest.
    return address(random.choices(ports, [2, 1])[0])


def with_answers(ports: list[int], figures: Figures) -> Figures:
    """Returns the figures, and the number of answers from the honest server."""
    return lambda: {**figures(), "answers": answers[address(ports[0])]}


async def talk(uri: str, **options: Any) -> None:
    connecting = wirespeed.connect(uri, **OPTIONS, **options)
    if random.randrange(5) == 0:
        # Nothing closes it: the connection is dropped.
        ws = await connecting
        await ws.send("x")
        return
    async with connecting as ws:
        leaves = random.randrange(30)
        for number in range(random.randrange(1, 20)):
            await ws.send(random.choice(BODIES))
            await asyncio.wait_for(ws.recv(), 1.0)
            answers[uri.replace("wss://localhost", "ws://127.0.0.1")] += 1
            if number == leaves:
                raise asyncio.CancelledError


async def again(ports: list[int], one: Any) -> None:
    while True:
        with contextlib.suppress(*EXPECTED, asyncio.CancelledError):
            await asyncio.wait_for(one(somewhere(ports)), random.choice([0.01, 0.3, 5.0]))
        await asyncio.sleep(0.02)


async def run(ports: list[int], one: Any) -> None:
    serve_in_thread(with_answers(ports, figures_of_loop(asyncio.get_running_loop(), *CONNECTIONS)))
    await asyncio.gather(*(again(ports, one) for _ in range(AT_ONCE)))


def tasks(ports: list[int]) -> None:
    asyncio.run(run(ports, talk))


def callbacks(ports: list[int]) -> None:
    class Counter(wirespeed.Listener):
        """Leaves after a few messages."""

        def __init__(self, uri: str) -> None:
            self.uri = uri
            self.left = random.randrange(1, 20)

        def on_open(self, ws: Any) -> None:
            with contextlib.suppress(wirespeed.ConnectionClosed):
                ws.send_nowait("x")

        def on_message(self, ws: Any, message: str | bytes) -> None:
            answers[self.uri] += 1
            self.left -= 1
            if self.left == 0:
                raise EOFError("enough")
            with contextlib.suppress(BlockingIOError, wirespeed.ConnectionClosed):
                ws.send_nowait(message)

    # It logs exceptions of listeners.
    logging.getLogger("wirespeed.client").setLevel(logging.CRITICAL)

    async def listen(uri: str) -> None:
        async with wirespeed.connect(uri, listener=Counter(uri), **OPTIONS) as ws:
            with contextlib.suppress(EOFError):
                await ws.wait_closed()

    wirespeed.run(run(ports, listen))


def returning(ports: list[int]) -> None:
    """Iterators that reconnect."""

    async def iterate(uri: str) -> None:
        count = 0
        async for ws in wirespeed.connect(uri, reconnect_delays=lambda: [0.05] * 5, **OPTIONS):
            count += 1
            if count > 5:
                return
            with contextlib.suppress(wirespeed.ConnectionClosed):
                await ws.send("x")
                await ws.recv()
                answers[uri] += 1
                await ws.close()

    asyncio.run(run(ports, iterate))


def blocking(ports: list[int]) -> None:
    def talk_blocking(uri: str) -> None:
        with connect_blocking(uri, **OPTIONS) as ws:
            for _ in range(random.randrange(1, 20)):
                ws.send(random.choice(BODIES))
                ws.recv(1.0)
                answers[uri] += 1
            if random.randrange(3) == 0:
                raise EOFError("it leaves in the middle")

    def forever() -> None:
        while True:
            with contextlib.suppress(*EXPECTED):
                talk_blocking(somewhere(ports))
            threading.Event().wait(0.02)

    serve_in_thread(with_answers(ports, lambda: {"objects": objects(*CONNECTIONS)}))
    for _ in range(AT_ONCE):
        threading.Thread(target=forever, daemon=True).start()
    threading.Event().wait()


def transports(ports: list[int]) -> None:
    """Over transports, on uvloop."""
    import uvloop

    uvloop.run(run(ports, functools.partial(talk, io_backend="transport")))


def streams(ports: list[int]) -> None:
    """Readers and writers."""

    async def read_and_write(uri: str) -> None:
        reader, writer = await wirespeed.open_stream(uri, **OPTIONS)
        try:
            for _ in range(random.randrange(1, 20)):
                data = b"x" * random.randrange(1, 70_000)
                writer.write(data)
                await writer.drain()
                await asyncio.wait_for(reader.readexactly(len(data)), 1.0)
                answers[uri] += 1
        finally:
            writer.close()
        if random.randrange(3):
            await writer.wait_closed()

    asyncio.run(run(ports, read_and_write))


def drop_in(ports: list[int]) -> None:
    """Under the names of websockets."""
    from wirespeed.compat.websockets.asyncio.client import connect

    async def talk_as_theirs(uri: str) -> None:
        async with connect(uri, **OPTIONS) as ws:
            for _ in range(random.randrange(1, 20)):
                await ws.send(random.choice(BODIES))
                await asyncio.wait_for(ws.recv(), 1.0)
                answers[uri] += 1

    asyncio.run(run(ports, talk_as_theirs))


def secure(ports: list[int]) -> None:
    """TLS, native and by a context, to a server in the same loop; hostile peers speak no TLS."""
    from support.certificates import Certificates

    async def echo(ws: Any) -> None:
        async for message in ws:
            await ws.send(message)

    async def main(certificates: Certificates) -> None:
        cert, key = certificates.server_files()
        native, context = wirespeed.TLS(ca=certificates.ca_file), certificates.client_context()
        limits = {name: OPTIONS[name] for name in OPTIONS if name != "proxy"}
        async with wirespeed.serve(echo, "127.0.0.1", 0, ssl=wirespeed.TLS(cert=cert, key=key), **limits) as server:
            port = next(iter(server.sockets)).getsockname()[1]

            async def talk_secretly(uri: str) -> None:
                await talk(
                    uri.replace("ws://127.0.0.1", "wss://localhost"),
                    ssl=random.choice([native, context]),
                    host="127.0.0.1",
                    port=int(uri.rstrip("/").rpartition(":")[2]),
                )

            await run([port, ports[1]], talk_secretly)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Certificates(Path(folder))))


CLIENTS = {
    "tasks": tasks,
    "callbacks": callbacks,
    "returning": returning,
    "transports": transports,
    "streams": streams,
    "drop-in": drop_in,
    "secure": secure,
    "blocking": blocking,
}


def main(name: str, seed: str, *ports: str) -> None:
    random.seed(int(seed))
    CLIENTS[name](list(map(int, ports)))
