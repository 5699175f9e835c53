"""websockets on asyncio, client and server; with the argument picows.websockets, that library, which has this API."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from peers.contract import (
    HEARTBEAT,
    LIMIT,
    PATIENCE,
    REFUSAL,
    SUBPROTOCOLS,
    UNLIMITED,
    Job,
    Record,
    Task,
    announce,
    client_context,
    jobs,
    mode,
    server_context,
    until_input_ends,
)

LIBRARY = sys.argv[2] if len(sys.argv) > 2 else "websockets"
client = importlib.import_module(f"{LIBRARY}.asyncio.client")
server = importlib.import_module(f"{LIBRARY}.asyncio.server")
exceptions = importlib.import_module(f"{LIBRARY}.exceptions")

VARIANTS = ["default", "limited", "keepalive", "tls"]
# picows.websockets takes no extensions.
if LIBRARY == "websockets":
    from websockets.extensions import permessage_deflate

    VARIANTS.append("no-takeover")


def options(variant: str, end: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "max_size": LIMIT if variant == "limited" else UNLIMITED,
        "ping_interval": HEARTBEAT if variant == "keepalive" else None,
        "ping_timeout": PATIENCE,
    }
    if variant == "no-takeover":
        factory = getattr(permessage_deflate, f"{end}PerMessageDeflateFactory")
        extension = factory(server_no_context_takeover=True, client_no_context_takeover=True)
        chosen.update(compression=None, extensions=[extension])
    return chosen


async def perform(ws: Any, task: Task, record: Record) -> None:
    record.opened(ws.subprotocol, ws.response.headers.get("Sec-WebSocket-Extensions"))
    with contextlib.suppress(exceptions.ConnectionClosed):
        if task.name == "close":
            await ws.close(task.number("code"), task.query.get("reason", ""))
        if task.name == "push":
            await ws.send(bytes(task.number("size")))
        if task.name == "headers":
            await ws.send(json.dumps({name.lower(): value for name, value in ws.request.headers.items()}))
        if task.name == "ping":
            for number in range(task.number("n")):
                await (await ws.ping(f"ping {number}"))
            await ws.send(f"{task.number('n')} pongs")
        async for message in ws:
            record.message(message)
            await ws.send(task.pieces(message) or message)
    await ws.wait_closed()
    record.closed(ws.close_code, ws.close_reason)


async def run(job: Job) -> None:
    record = Record(job.task)
    secure = {"ssl": client_context()} if job.uri.startswith("wss:") else {}
    try:
        async with client.connect(
            job.uri,
            subprotocols=job.subprotocols or None,
            additional_headers=dict(job.headers),
            proxy=None,
            **secure,
            **options(job.variant, "Client"),
        ) as ws:
            await perform(ws, job.task, record)
    except exceptions.InvalidStatus as exc:
        record.failed(exc)
        record.refused(exc.response.status_code, (exc.response.body or b"").decode())
    except (exceptions.WebSocketException, OSError) as exc:
        record.failed(exc)
    record.emit()


def refuse(connection: Any, request: Any) -> Any:
    return connection.respond(403, REFUSAL) if Task.parse(request.path).name == "reject" else None


def choose(_: Any, offered: Sequence[str]) -> str | None:
    """Otherwise websockets refuses clients that offer no subprotocol."""
    return next((name for name in SUBPROTOCOLS if name in offered), None)


async def answer(ws: Any) -> None:
    task = Task.parse(ws.request.path)
    record = Record(task)
    try:
        await perform(ws, task, record)
    finally:
        record.emit()


async def serve() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        ports = {}
        for variant in VARIANTS:
            running = await stack.enter_async_context(
                server.serve(
                    answer,
                    "127.0.0.1",
                    0,
                    subprotocols=SUBPROTOCOLS,
                    select_subprotocol=choose,
                    process_request=refuse,
                    ssl=server_context() if variant == "tls" else None,
                    **options(variant, "Server"),
                )
            )
            ports[variant] = next(iter(running.sockets)).getsockname()[1]
        announce(ports)
        until_input_ends(lambda: loop.call_soon_threadsafe(stop.set))
        await stop.wait()


if __name__ == "__main__":
    if mode() == "server":
        asyncio.run(serve())
    else:
        for given in jobs():
            asyncio.run(run(given))
