"""A server on wirespeed: coroutine functions that await messages, or, in the style callbacks, listeners."""

from __future__ import annotations

from typing import Any

from wirespeed import Listener, broadcast, serve

from serving.server import BACKLOG, forever, handlers, parse, ready, report, run

OPTIONS = parse()
HANDLERS = handlers(broadcast)
EVERYBODY: set[Any] = set()


async def handler(ws: Any) -> None:
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
    compression = "deflate" if OPTIONS.deflate else None
    how: dict[str, Any] = {"compression": compression, "ping_interval": OPTIONS.ping_interval, "backlog": BACKLOG}
    how |= {"listener": LISTENERS[OPTIONS.role], "zero_copy": True} if callbacks else {}
    async with serve(None if callbacks else handler, "127.0.0.1", 0, **how) as server:
        ready(server.sockets[0].getsockname()[1])
        await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
