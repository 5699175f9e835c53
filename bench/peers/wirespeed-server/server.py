"""A server on wirespeed. At /sink, it counts; at /fan-out, everybody gets what anybody sends."""

from __future__ import annotations

from typing import Any

from wirespeed import Listener, ServerConnection, broadcast, serve

from serving.server import BACKLOG, forever, parse, ready, report, run

OPTIONS = parse()
EVERYBODY: set[Any] = set()


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
    await HANDLERS[ws.request.path](ws)


class Echo(Listener):
    def on_message(self, ws: Any, message: Any) -> None:
        ws.send_nowait(message)


class Sink(Listener):
    def __init__(self) -> None:
        self.messages = 0
        self.size = 0

    def on_message(self, ws: Any, message: Any) -> None:
        if isinstance(message, str):
            ws.send_nowait(report(self.messages, self.size))
        else:
            self.messages += 1
            self.size += len(message)


class FanOut(Listener):
    def on_open(self, ws: Any) -> None:
        EVERYBODY.add(ws)

    def on_message(self, ws: Any, message: Any) -> None:
        broadcast(EVERYBODY, message)

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        EVERYBODY.discard(ws)


# Listeners are made without a look at the path.
LISTENERS = {"echo": Echo, "sink": Sink, "fan-out": FanOut}


async def main() -> None:
    callbacks = OPTIONS.style == "callbacks"
    how: dict[str, Any] = {"listener": LISTENERS[OPTIONS.role], "zero_copy": True} if callbacks else {}
    async with serve(
        None if callbacks else handler,
        "127.0.0.1",
        0,
        compression="deflate" if OPTIONS.deflate else None,
        ping_interval=OPTIONS.ping_interval,
        backlog=BACKLOG,
        **how,
    ) as server:
        ready(server.sockets[0].getsockname()[1])
        await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
