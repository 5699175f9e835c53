"""One hot path, so many times: `path.py NAME COUNT URL`. Its instructions are counted from outside.

A name may begin with an event loop: `run:await-round-trip`. The paths of the server start their client as a child,
whose instructions are not counted.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import wirespeed
from wirespeed import ClientConnection, Listener, ServerConnection
from wirespeed.engine import Disconnected, Engine, Message
from wirespeed.sync import connect as connect_blocking

MESSAGE = bytes(range(256))
SMALL = 64
OPTIONS: dict[str, Any] = {"compression": None, "ping_interval": None, "proxy": None}


def sync_round_trip(count: int, url: str) -> None:
    with connect_blocking(url, **OPTIONS) as ws:
        for _ in range(count):
            ws.send(MESSAGE)
            assert ws.recv() == MESSAGE


def sync_stream(count: int, url: str) -> None:
    with connect_blocking(f"{url}/blast?size={SMALL}", **OPTIONS) as ws:
        for _ in range(count):
            message = ws.recv()
        assert int.from_bytes(message[:8], "little") == count - 1


def sync_send(count: int, url: str) -> None:
    with connect_blocking(f"{url}/sink", **OPTIONS) as ws:
        for _ in range(count):
            ws.send(MESSAGE)
        ws.send("report")
        assert f'"messages": {count}' in ws.recv()


async def await_round_trip(count: int, url: str) -> None:
    async with wirespeed.connect(url, **OPTIONS) as ws:
        for _ in range(count):
            await ws.send(MESSAGE)
            assert await ws.recv() == MESSAGE


async def await_send(count: int, url: str) -> None:
    async with wirespeed.connect(f"{url}/sink", **OPTIONS) as ws:
        for _ in range(count):
            await ws.send(MESSAGE)
        await ws.send("report")
        assert f'"messages": {count}' in await ws.recv()


async def await_open(count: int, url: str) -> None:
    for _ in range(count):
        ws = await wirespeed.connect(url, **OPTIONS)
        await ws.close()


async def callbacks_round_trip(count: int, url: str) -> None:
    over = asyncio.get_running_loop().create_future()

    class Echo(Listener):
        left = count

        def on_open(self, ws: ClientConnection) -> None:
            ws.send_nowait(MESSAGE)

        def on_message(self, ws: ClientConnection, message: Any) -> None:
            assert message == MESSAGE
            self.left -= 1
            if self.left:
                ws.send_nowait(MESSAGE)
            elif not over.done():
                over.set_result(None)

        def on_close(self, ws: ClientConnection, code: int, reason: str) -> None:
            if not over.done():
                over.set_exception(ConnectionError(f"closed with {code}"))

    ws = await wirespeed.connect(url, listener=Echo(), **OPTIONS)
    await over
    await ws.close()


async def server_echo(count: int, url: str) -> None:
    async def handler(ws: ServerConnection) -> None:
        async for message in ws:
            await ws.send(message)

    await serve_child(handler, "sync-round-trip", count)


async def server_open(count: int, url: str) -> None:
    async def handler(ws: ServerConnection) -> None:
        await ws.wait_closed()

    await serve_child(handler, "sync-open", count)


def sync_open(count: int, url: str) -> None:
    for _ in range(count):
        connect_blocking(url, **OPTIONS).close()


async def serve_child(handler: Callable[[ServerConnection], Any], path: str, count: int) -> None:
    """Serves a child that runs a path against this server, until it ends."""
    async with wirespeed.serve(handler, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        child = await asyncio.create_subprocess_exec(sys.executable, __file__, path, str(count), url)
        ended(await child.wait())


def engine_echo(count: int, url: str) -> None:
    """The engine without Python: one worker."""
    engine = Engine("127.0.0.1", workers=1)
    engine.echo("/")
    with engine, engine_client(engine, count) as client:
        ended(client.wait())


def engine_batches(count: int, url: str) -> None:
    """The engine's events in batches, each message sent back by Python."""
    with Engine("127.0.0.1", workers=1) as engine, engine_client(engine, count) as client:
        for batch in engine.batches():
            for event in batch:
                if type(event) is Message:
                    event.session.send(event.data)
            if type(batch[-1]) is Disconnected:
                break
        ended(client.wait())


def engine_client(engine: Engine, count: int) -> subprocess.Popen[bytes]:
    host, port = engine.addresses[0]
    return subprocess.Popen([sys.executable, __file__, "sync-round-trip", str(count), f"ws://{host}:{port}"])


def ended(status: int | None) -> None:
    if status:
        raise SystemExit(f"the client ended with status {status}")


PATHS: list[Callable[[int, str], Any]] = [
    *(sync_round_trip, sync_stream, sync_send, sync_open, await_round_trip, await_send, await_open),
    *(callbacks_round_trip, server_echo, server_open, engine_echo, engine_batches),
]


def main() -> None:
    # A collection now and then visits only objects of the path: with those of the imports, one more collection in the
    # longer run would change the count of opening a connection by several percent.
    gc.collect()
    gc.freeze()
    name, count, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    loop, _, path = name.rpartition(":")
    result = {one.__name__.replace("_", "-"): one for one in PATHS}[path](count, url)
    if not asyncio.iscoroutine(result):
        return
    if loop == "run":
        wirespeed.run(result)
    else:
        asyncio.run(result)


if __name__ == "__main__":
    main()
