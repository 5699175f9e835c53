"""A server on aiohttp, as in its documentation. At /sink, it counts; at /fan-out, it broadcasts."""

from __future__ import annotations

from aiohttp import WSMsgType, web

from serving.server import BACKLOG, forever, parse, ready, report, run

OPTIONS = parse()
EVERYBODY: set[web.WebSocketResponse] = set()


async def accept(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse(heartbeat=OPTIONS.ping_interval, compress=OPTIONS.deflate)
    await ws.prepare(request)
    return ws


async def echo(request: web.Request) -> web.WebSocketResponse:
    ws = await accept(request)
    async for message in ws:
        if message.type == WSMsgType.BINARY:
            await ws.send_bytes(message.data)
        elif message.type == WSMsgType.TEXT:
            await ws.send_str(message.data)
    return ws


async def sink(request: web.Request) -> web.WebSocketResponse:
    ws = await accept(request)
    messages = size = 0
    async for message in ws:
        if message.type == WSMsgType.BINARY:
            messages += 1
            size += len(message.data)
        elif message.type == WSMsgType.TEXT:
            await ws.send_str(report(messages, size))
    return ws


async def fan_out(request: web.Request) -> web.WebSocketResponse:
    ws = await accept(request)
    EVERYBODY.add(ws)
    try:
        async for message in ws:
            if message.type == WSMsgType.BINARY:
                for other in tuple(EVERYBODY):
                    await other.send_bytes(message.data)
    finally:
        EVERYBODY.discard(ws)
    return ws


async def main() -> None:
    app = web.Application()
    app.add_routes([web.get("/", echo), web.get("/sink", sink), web.get("/fan-out", fan_out)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=BACKLOG)
    await site.start()
    ready(runner.addresses[0][1])
    await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
