"""aiohttp, the WebSocket client of its sessions."""

from __future__ import annotations

import functools
from typing import Any

from models.connection import Client, Connection, check_deflate, tls_context
from models.peer import main
from models.program import Library


@functools.cache
def session() -> Any:
    """Returns the one session of this process: it has no limit on connections."""
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects with the library's defaults, in which compression and keepalive are off, and without a limit on size."""
    return await session().ws_connect(url, ssl=tls_context(url, ca) or True, max_msg_size=0, **options)


async def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects for awaiting.

    `receive` returns a tuple of type, content and flags: the whole is compared, which costs less than `receive_bytes`.
    """
    from aiohttp import WSMessage, WSMsgType

    ws = await open_with(url, ca)
    how = {"send_text": ws.send_str, "messages": ws, "close": ws.close}
    return Connection(ws, ws.send_bytes, ws.receive, **how, encode=lambda data: WSMessage(WSMsgType.BINARY, data, ""))


async def deflate(url: str, ca: str | None, size: int) -> Connection:
    """Connects with the largest window that can be offered; level (zlib's fastest) and memory are the library's own."""
    from aiohttp import WSMessage, WSMsgType

    ws = await open_with(url, ca, compress=15)
    check_deflate("permessage-deflate" if ws.compress else None)
    how = {"send_text": ws.send_str, "close": ws.close}
    return Connection(ws, ws.send_str, ws.receive, **how, encode=lambda text: WSMessage(WSMsgType.TEXT, text, ""))


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


if __name__ == "__main__":
    # `receive` reports a close by a message, not by an exception.
    closed = {"send": "aiohttp:ClientConnectionResetError"}
    client = Client(connect, deflate=deflate, closed=closed, serve=serve)
    # All that `pip install aiohttp[speedups]` brings.
    library = Library("aiohttp", "aiohttp", ("aiodns", "brotli", "backports.zstd"))
    main(library, {"await": client, "iterate": Client(connect, "iterate")})
