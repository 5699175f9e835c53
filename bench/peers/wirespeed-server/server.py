"""An echo server on wirespeed. At /fan-out, everybody gets what anybody sends."""

from __future__ import annotations

from typing import Any

from wirespeed import Listener, ServerConnection, broadcast, serve

from peers.server_program import forever, parse, ready, run

OPTIONS = parse()
EVERYBODY: set[ServerConnection] = set()


async def handler(ws: ServerConnection) -> None:
    if ws.request.path != "/fan-out":
        async for message in ws:
            await ws.send(message)
        return
    EVERYBODY.add(ws)
    try:
        async for message in ws:
            broadcast(EVERYBODY, message)
    finally:
        EVERYBODY.discard(ws)


class Echo(Listener):
    def on_message(self, ws: Any, message: Any) -> None:
        ws.send_nowait(message)


async def main() -> None:
    callbacks = OPTIONS.style == "callbacks"
    how: dict[str, Any] = {"listener": Echo, "zero_copy": True} if callbacks else {}
    async with serve(
        None if callbacks else handler, "127.0.0.1", 0, ping_interval=OPTIONS.ping_interval, **how
    ) as server:
        ready(server.sockets[0].getsockname()[1])
        await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
