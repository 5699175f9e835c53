"""An echo server on aiohttp."""

from __future__ import annotations

from aiohttp import WSMsgType, web

from peers.server_program import forever, parse, ready, run

OPTIONS = parse()


async def handler(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(heartbeat=OPTIONS.ping_interval)
    await ws.prepare(request)
    async for message in ws:
        if message.type == WSMsgType.BINARY:
            await ws.send_bytes(message.data)
        elif message.type == WSMsgType.TEXT:
            await ws.send_str(message.data)
    return ws


async def main() -> None:
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ready(runner.addresses[0][1])
    await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
