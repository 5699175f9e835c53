"""An echo server on websockets. At /fan-out, everybody gets what anybody sends."""

from __future__ import annotations

from websockets.asyncio.server import ServerConnection, broadcast, serve

from peers.server_program import forever, parse, ready, run

OPTIONS = parse()
EVERYBODY: set[ServerConnection] = set()


async def handler(ws: ServerConnection) -> None:
    if ws.request is None or ws.request.path != "/fan-out":
        async for message in ws:
            await ws.send(message)
        return
    EVERYBODY.add(ws)
    try:
        async for message in ws:
            broadcast(EVERYBODY, message)
    finally:
        EVERYBODY.discard(ws)


async def main() -> None:
    async with serve(handler, "127.0.0.1", 0, ping_interval=OPTIONS.ping_interval) as server:
        ready(next(iter(server.sockets)).getsockname()[1])
        await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
