"""A server on websockets, as in its documentation."""

from __future__ import annotations

from typing import Any

from websockets.asyncio.server import broadcast, serve

from serving.server import BACKLOG, forever, handlers, parse, ready, run

OPTIONS = parse()
HANDLERS = handlers(broadcast)


async def handler(ws: Any) -> None:
    await HANDLERS[ws.request.path](ws)


async def main() -> None:
    compression = "deflate" if OPTIONS.deflate else None
    how = {"compression": compression, "ping_interval": OPTIONS.ping_interval, "backlog": BACKLOG}
    async with serve(handler, "127.0.0.1", 0, **how) as server:
        ready(next(iter(server.sockets)).getsockname()[1])
        await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
