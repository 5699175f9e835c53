"""aiohttp, the WebSocket client of its sessions."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.asynchronous import main
from models.awaiting import Awaiting
from models.tls import tls_context


@functools.cache
def session() -> Any:
    """Returns the one session of this process: it has no limit on connections."""
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects with the library's defaults, in which compression and keepalive are off, and without a limit on size."""
    context = tls_context(ca) if url.startswith("wss:") else True
    return await session().ws_connect(url, ssl=context, max_msg_size=0, **options)


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects for awaiting.

    `receive` returns a tuple of type, content and flags: the whole is compared, which costs less than `receive_bytes`.
    """
    from aiohttp import WSMessage, WSMsgType

    ws = await open_with(url, ca)
    return Awaiting(
        ws,
        send=ws.send_bytes,
        recv=ws.receive,
        report=report_of(ws),
        send_text=ws.send_str,
        messages=ws,
        close=ws.close,
        encode=lambda message: WSMessage(WSMsgType.BINARY, message, ""),
    )


async def deflate(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with the largest window that can be offered; level (zlib's fastest) and memory are the library's own."""
    from aiohttp import WSMessage, WSMsgType

    ws = await open_with(url, ca, compress=15)
    check_deflate("permessage-deflate" if ws.compress else None)
    return Awaiting(
        ws,
        send=ws.send_str,
        recv=ws.receive,
        report=report_of(ws),
        close=ws.close,
        encode=lambda message: WSMessage(WSMsgType.TEXT, message, ""),
    )


async def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's heartbeat: a pong must come within half of it, so this makes up the same sum."""
    from aiohttp import ServerTimeoutError, WSMsgType

    ws = await open_with(url, ca, heartbeat=(patience.interval + patience.timeout) * 2 / 3)

    def tells(told: Any) -> bool:
        return getattr(told, "type", None) is WSMsgType.ERROR and isinstance(told.data, ServerTimeoutError)

    return Watched(ws, ws.receive, tells)


async def serve() -> tuple[str, object]:
    """Serves with the library's defaults, and without a limit on size."""
    from aiohttp import WSMsgType, web

    async def echo(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(compress=False, max_msg_size=0)
        await ws.prepare(request)
        async for message in ws:
            if message.type == WSMsgType.BINARY:
                await ws.send_bytes(message.data)
        return ws

    app = web.Application()
    app.add_routes([web.get("/", echo)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"ws://127.0.0.1:{runner.addresses[0][1]}/", runner


def report_of(ws: Any) -> Callable[[], Awaitable[object]]:
    """Returns what asks the server's /sink."""

    async def report() -> object:
        await ws.send_str("report")
        return (await ws.receive()).data

    return report


# `receive` tells of a close by a message, not by an exception.
ABILITIES = Abilities(deflate=deflate, closed={"send": "aiohttp:ClientConnectionResetError"}, watch=watch, serve=serve)


if __name__ == "__main__":
    # All that `pip install aiohttp[speedups]` brings.
    helpers = ("aiodns", "brotli", "backports.zstd")
    main("aiohttp", "aiohttp", {"await": connect, "iterate": connect}, helpers=helpers, abilities={"await": ABILITIES})
