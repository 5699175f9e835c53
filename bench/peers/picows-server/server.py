"""An echo server on picows, as in its examples. At /fan-out, everybody gets what anybody sends."""

from __future__ import annotations

from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from peers.server_program import forever, parse, ready, run

OPTIONS = parse()
EVERYBODY: set[WSTransport] = set()


class Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()
        elif frame.msg_type in (WSMsgType.BINARY, WSMsgType.TEXT):
            transport.send(frame.msg_type, frame.get_payload_as_memoryview())


class FanOut(WSListener):
    def on_ws_connected(self, transport: WSTransport) -> None:
        EVERYBODY.add(transport)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        EVERYBODY.discard(transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()
        elif frame.msg_type in (WSMsgType.BINARY, WSMsgType.TEXT):
            message = frame.get_payload_as_bytes()
            for other in EVERYBODY:
                other.send(frame.msg_type, message)


def factory(request: WSUpgradeRequest) -> WSListener:
    return FanOut() if request.path == b"/fan-out" else Echo()


async def main() -> None:
    server = await ws_create_server(factory, "127.0.0.1", 0)
    ready(server.sockets[0].getsockname()[1])
    await forever()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
