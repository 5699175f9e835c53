"""aiohttp, client and server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from peers.contract import (
    LIMIT,
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

VARIANTS = ("default", "limited", "keepalive", "tls")
# aiohttp expects a pong within half of this.
HEARTBEAT = 1.0


def options(variant: str, task: Task) -> dict[str, Any]:
    return {
        "max_msg_size": LIMIT if variant == "limited" else UNLIMITED,
        "heartbeat": HEARTBEAT if variant == "keepalive" else None,
        # Otherwise aiohttp consumes pongs itself.
        "autoping": task.name != "ping",
    }


async def next_message(ws: Any) -> Any:
    """Returns the next event except pings, which are answered."""
    while True:
        event = await ws.receive()
        if event.type is not WSMsgType.PING:
            return event
        await ws.pong(event.data)


async def ping(ws: Any, times: int) -> None:
    for number in range(times):
        await ws.ping(b"ping %d" % number)
        pong = await next_message(ws)
        if (pong.type, bytes(pong.data or b"")) != (WSMsgType.PONG, b"ping %d" % number):
            raise ValueError(f"not the pong: {pong}")
    await ws.send_str(f"{times} pongs")


async def perform(ws: Any, task: Task, record: Record) -> None:
    reason = None
    if task.name == "close":
        await ws.close(code=task.number("code"), message=task.query.get("reason", "").encode())
    if task.name == "push":
        await ws.send_bytes(bytes(task.number("size")))
    if task.name == "ping":
        await ping(ws, task.number("n"))
    while True:
        event = await next_message(ws)
        if event.type is WSMsgType.TEXT:
            record.message(event.data)
            await ws.send_str(event.data)
        elif event.type is WSMsgType.BINARY:
            record.message(event.data)
            await ws.send_bytes(event.data)
        else:
            break
    if event.type is WSMsgType.CLOSE:
        reason = event.extra or ""
    if event.type is WSMsgType.ERROR:
        record.failed(str(event.data))
    record.closed(ws.close_code, reason)


async def run(job: Job) -> None:
    record = Record(job.task)
    secure = {"ssl": client_context()} if job.uri.startswith("wss:") else {}
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(
                job.uri,
                protocols=job.subprotocols,
                headers=job.headers,
                compress=15,
                **secure,
                **options(job.variant, job.task),
            ) as ws,
        ):
            record.opened(ws.protocol, "permessage-deflate" if ws.compress else None)
            await perform(ws, job.task, record)
    except aiohttp.WSServerHandshakeError as exc:
        record.failed(exc)
        record.refused(exc.status, None)
    except (aiohttp.ClientError, OSError) as exc:
        record.failed(exc)
    record.emit()


def application(variant: str) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        task = Task.parse(request.path_qs)
        if task.name == "reject":
            return web.Response(status=403, text=REFUSAL)
        record = Record(task)
        ws = web.WebSocketResponse(protocols=SUBPROTOCOLS, compress=True, **options(variant, task))
        await ws.prepare(request)
        record.opened(ws.ws_protocol, "permessage-deflate" if ws.compress else None)
        try:
            if task.name == "headers":
                await ws.send_str(json.dumps({name.lower(): value for name, value in request.headers.items()}))
            await perform(ws, task, record)
        except ConnectionError as exc:
            record.failed(exc)
            record.closed(ws.close_code, None)
        finally:
            record.emit()
        return ws

    app = web.Application()
    app.router.add_get("/{task}", answer)
    return app


async def serve() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    ports, runners = {}, []
    for variant in VARIANTS:
        runner = web.AppRunner(application(variant), access_log=None, shutdown_timeout=1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context() if variant == "tls" else None)
        await site.start()
        ports[variant] = runner.addresses[0][1]
    announce(ports)
    until_input_ends(lambda: loop.call_soon_threadsafe(stop.set))
    await stop.wait()
    for runner in runners:
        await runner.cleanup()


if __name__ == "__main__":
    if mode() == "server":
        asyncio.run(serve())
    else:
        for given in jobs():
            asyncio.run(run(given))
