"""A server on picows, as in its examples. At /sink, it counts; at /fan-out, every client gets what any client sends."""

from __future__ import annotations

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from serving.server import BACKLOG, forever, parse, ready, report, run

OPTIONS = parse()
EVERYBODY: set[WSTransport] = set()


def close(transport: WSTransport, frame: WSFrame) -> None:
    transport.send_close(frame.get_close_code(), frame.get_close_message())
    transport.disconnect()


class Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            close(transport, frame)
        elif frame.msg_type in (WSMsgType.BINARY, WSMsgType.TEXT):
            transport.send(frame.msg_type, frame.get_payload_as_memoryview())


class Sink(WSListener):
    def __init__(self) -> None:
        self.messages = 0
        self.size = 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            self.messages += 1
            self.size += len(frame.get_payload_as_memoryview())
        elif frame.msg_type == WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, report(self.messages, self.size).encode())
        elif frame.msg_type == WSMsgType.CLOSE:
            close(transport, frame)


class FanOut(WSListener):
    def on_ws_connected(self, transport: WSTransport) -> None:
        EVERYBODY.add(transport)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        EVERYBODY.discard(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            close(transport, frame)
        elif frame.msg_type in (WSMsgType.BINARY, WSMsgType.TEXT):
            message = frame.get_payload_as_bytes()
            for other in EVERYBODY:
                other.send(frame.msg_type, message)


LISTENERS = {b"/": Echo, b"/sink": Sink, b"/fan-out": FanOut}


async def main() -> None:
    # The read buffer is that of the examples, the library's own. The time for a reply must not be longer than that to a
    # ping.
    interval = OPTIONS.ping_interval
    pings = {
        "auto_ping_idle_timeout": interval,
        "auto_ping_reply_timeout": interval,
        "enable_auto_ping": OPTIONS.must_ping,
    }
    server = await ws_create_server(lambda request: LISTENERS[request.path](), "127.0.0.1", 0, backlog=BACKLOG, **pings)
    ready(server.sockets[0].getsockname()[1])
    await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
