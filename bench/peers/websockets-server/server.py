"""A server on websockets. At /sink, it counts; at /fan-out, everybody gets what anybody sends."""

from __future__ import annotations

from websockets.asyncio.server import ServerConnection, broadcast, serve

from serving.server import BACKLOG, forever, parse, ready, report, run

OPTIONS = parse()
EVERYBODY: set[ServerConnection] = set()


async def echo(ws: ServerConnection) -> None:
    async for message in ws:
        await ws.send(message)


async def sink(ws: ServerConnection) -> None:
    messages = size = 0
    async for message in ws:
        if isinstance(message, bytes):
            messages += 1
            size += len(message)
        else:
            await ws.send(report(messages, size))


async def fan_out(ws: ServerConnection) -> None:
    EVERYBODY.add(ws)
    try:
        async for message in ws:
            broadcast(EVERYBODY, message)
    finally:
        EVERYBODY.discard(ws)


HANDLERS = {"/": echo, "/sink": sink, "/fan-out": fan_out}


async def handler(ws: ServerConnection) -> None:
    await HANDLERS[ws.request.path if ws.request is not None else "/"](ws)


async def main() -> None:
    async with serve(
        handler,
        "127.0.0.1",
        0,
        compression="deflate" if OPTIONS.deflate else None,
        ping_interval=OPTIONS.ping_interval,
        backlog=BACKLOG,
    ) as server:
        ready(next(iter(server.sockets)).getsockname()[1])
        await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
