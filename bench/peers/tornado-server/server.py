"""A server on tornado, as in its documentation. At /sink, it counts; at /fan-out, it broadcasts."""

from __future__ import annotations

from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketHandler

from serving.server import BACKLOG, forever, parse, ready, report, run

OPTIONS = parse()
EVERYBODY: set[WebSocketHandler] = set()


class Handler(WebSocketHandler):
    def get_compression_options(self) -> dict[str, Any] | None:
        return {} if OPTIONS.deflate else None

    def open(self) -> None:
        self.set_nodelay(True)


class Echo(Handler):
    def on_message(self, message: str | bytes) -> None:
        self.write_message(message, binary=isinstance(message, bytes))


class Sink(Handler):
    def open(self) -> None:
        super().open()
        self.messages = 0
        self.size = 0

    def on_message(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self.messages += 1
            self.size += len(message)
        else:
            self.write_message(report(self.messages, self.size))


class FanOut(Handler):
    def open(self) -> None:
        super().open()
        EVERYBODY.add(self)

    def on_close(self) -> None:
        EVERYBODY.discard(self)

    def on_message(self, message: str | bytes) -> None:
        for other in EVERYBODY:
            other.write_message(message, binary=isinstance(message, bytes))


async def main() -> None:
    handlers = [("/", Echo), ("/sink", Sink), ("/fan-out", FanOut)]
    app = Application(handlers, websocket_ping_interval=OPTIONS.ping_interval)
    # Nothing is logged for each request, as in the other servers.
    app.settings["log_function"] = lambda handler: None
    sockets = bind_sockets(0, "127.0.0.1", backlog=BACKLOG)
    HTTPServer(app).add_sockets(sockets)
    ready(sockets[0].getsockname()[1])
    await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
