"""A server on socketify, as in its examples. At /sink, it counts; at /fan-out, it broadcasts.

It runs libuv inside its own way of running asyncio, so there is no other loop to choose.
"""

from __future__ import annotations

from typing import Any

from socketify import App, CompressOptions, OpCode

from serving.server import parse, prepare, ready, report

OPTIONS = parse()
# No limit on size and none on what is queued: above it, socketify drops messages.
COMMON = {
    "compression": CompressOptions.SHARED_COMPRESSOR if OPTIONS.deflate else CompressOptions.DISABLED,
    "max_payload_length": 1 << 26,
    "idle_timeout": 120,
    "max_backpressure": 1 << 28,
}


class Tally:
    """What a connection of /sink has taken."""

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0


def echo(ws: Any, message: Any, opcode: Any) -> None:
    ws.send(message, opcode, OPTIONS.deflate)


def join(ws: Any) -> None:
    ws.subscribe("everybody")


def begin_tally(response: Any, request: Any, socket_context: Any) -> None:
    response.upgrade(
        request.get_header("sec-websocket-key"),
        request.get_header("sec-websocket-protocol"),
        request.get_header("sec-websocket-extensions"),
        socket_context,
        Tally(),
    )


def count(ws: Any, message: Any, opcode: Any) -> None:
    tally = ws.get_user_data()
    if opcode == OpCode.BINARY:
        tally.messages += 1
        tally.size += len(message)
    else:
        ws.send(report(tally.messages, tally.size), OpCode.TEXT)


def main() -> None:
    prepare()
    app = App()

    def share(ws: Any, message: Any, opcode: Any) -> None:
        app.publish("everybody", message, opcode, OPTIONS.deflate)

    app.ws("/", {**COMMON, "message": echo})
    app.ws("/sink", {**COMMON, "upgrade": begin_tally, "message": count})
    app.ws("/fan-out", {**COMMON, "open": join, "message": share})
    app.listen({"host": "127.0.0.1", "port": 0}, lambda config: ready(config.port))
    app.run()


if __name__ == "__main__":
    main()
