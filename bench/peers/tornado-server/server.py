"""An echo server on tornado, as in its documentation. At /fan-out, everybody gets what anybody sends."""

from __future__ import annotations

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketHandler

from peers.server_program import forever, parse, ready, run

OPTIONS = parse()
EVERYBODY: set[WebSocketHandler] = set()


class Echo(WebSocketHandler):
    def open(self) -> None:
        self.set_nodelay(True)

    def on_message(self, message: str | bytes) -> None:
        self.write_message(message, binary=isinstance(message, bytes))


class FanOut(WebSocketHandler):
    def open(self) -> None:
        self.set_nodelay(True)
        EVERYBODY.add(self)

    def on_close(self) -> None:
        EVERYBODY.discard(self)

    def on_message(self, message: str | bytes) -> None:
        for other in EVERYBODY:
            other.write_message(message, binary=isinstance(message, bytes))


async def main() -> None:
    app = Application([("/", Echo), ("/fan-out", FanOut)], websocket_ping_interval=OPTIONS.ping_interval)
    # Nothing is logged for each request, as in the other servers.
    app.settings["log_function"] = lambda handler: None
    sockets = bind_sockets(0, "127.0.0.1", backlog=1024)
    HTTPServer(app).add_sockets(sockets)
    ready(sockets[0].getsockname()[1])
    await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
