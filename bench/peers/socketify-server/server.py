"""An echo server on socketify, as in its examples. At /fan-out, everybody gets what anybody publishes.

It runs libuv inside its own way of running asyncio, so there is no other loop to choose.
"""

from __future__ import annotations

from typing import Any

from socketify import App

from peers.server_program import parse, prepare, ready

OPTIONS = parse()
# No limit on size and none on what is queued: above it, socketify drops messages.
COMMON = {"compression": 0, "max_payload_length": 1 << 26, "idle_timeout": 120, "max_backpressure": 1 << 28}


def echo(ws: Any, message: Any, opcode: Any) -> None:
    ws.send(message, opcode)


def join(ws: Any) -> None:
    ws.subscribe("everybody")


def main() -> None:
    prepare()
    app = App()

    def share(ws: Any, message: Any, opcode: Any) -> None:
        app.publish("everybody", message, opcode)

    app.ws("/", {**COMMON, "message": echo})
    app.ws("/fan-out", {**COMMON, "open": join, "message": share})
    app.listen({"host": "127.0.0.1", "port": 0}, lambda config: ready(config.port))
    app.run()


if __name__ == "__main__":
    main()
