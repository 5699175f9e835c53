"""picows, client and server. It delivers frames: this program adds messages, subprotocols and closing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import picows
from picows import WSAutoPingStrategy, WSFrame, WSListener, WSMsgType, WSTransport

from peers.contract import (
    LIMIT,
    REFUSAL,
    SUBPROTOCOLS,
    UNLIMITED,
    Job,
    Record,
    Task,
    announce,
    client_context,
    jobs,
    mode,
    server_context,
    until_input_ends,
)

VARIANTS = ("default", "limited", "keepalive", "tls")
# picows expects a pong within this time.
HEARTBEAT = 0.5


def options(variant: str) -> dict[str, Any]:
    return {
        "max_frame_size": LIMIT if variant == "limited" else UNLIMITED,
        "enable_auto_ping": variant == "keepalive",
        "auto_ping_idle_timeout": HEARTBEAT,
        "auto_ping_reply_timeout": HEARTBEAT,
        "auto_ping_strategy": WSAutoPingStrategy.PING_PERIODICALLY,
    }


class Performer(WSListener):
    """Handles one connection."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.record = Record(task)
        self.kind = WSMsgType.BINARY
        self.message = bytearray()
        self.pings = 0

    def on_ws_connected(self, transport: WSTransport) -> None:
        headers = transport.response.headers
        self.record.opened(headers.get("Sec-WebSocket-Protocol"), headers.get("Sec-WebSocket-Extensions"))
        task = self.task
        if task.name == "close":
            transport.send_close(task.number("code"), task.query.get("reason", "").encode())
        if task.name == "push":
            transport.send(WSMsgType.BINARY, bytes(task.number("size")))
        if task.name == "headers":
            fields = {name.lower(): value for name, value in transport.request.headers.items()}
            transport.send(WSMsgType.TEXT, json.dumps(fields).encode())
        if task.name == "ping":
            transport.send_ping(b"ping 0")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        payload = frame.get_payload_as_bytes()
        if frame.msg_type == WSMsgType.CLOSE:
            if not transport.is_close_frame_sent:
                transport.send_close(frame.get_close_code(), frame.get_close_message())
            transport.disconnect()
        elif frame.msg_type == WSMsgType.PONG:
            self.on_pong(transport, payload)
        elif frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            if frame.msg_type != WSMsgType.CONTINUATION:
                self.kind = frame.msg_type
            self.message += payload
            if frame.fin:
                self.on_message(transport, bytes(self.message))
                self.message.clear()

    def on_pong(self, transport: WSTransport, payload: bytes) -> None:
        if self.task.name != "ping" or payload != b"ping %d" % self.pings:
            return
        self.pings += 1
        if self.pings == self.task.number("n"):
            transport.send(WSMsgType.TEXT, b"%d pongs" % self.pings)
        else:
            transport.send_ping(b"ping %d" % self.pings)

    def on_message(self, transport: WSTransport, message: bytes) -> None:
        self.record.message(message.decode() if self.kind == WSMsgType.TEXT else message)
        pieces = self.task.pieces(message) or [message]
        for index, piece in enumerate(pieces):
            kind = WSMsgType.CONTINUATION if index else self.kind
            transport.send(kind, piece, fin=index == len(pieces) - 1)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        received = transport.close_handshake.recv if transport.close_handshake is not None else None
        if received is None:
            self.record.closed(1006, None)
        else:
            self.record.closed(received.code or 1005, received.reason)
        self.record.emit()


async def run(job: Job) -> None:
    headers = list(job.headers)
    if job.subprotocols:
        headers.append(("Sec-WebSocket-Protocol", ", ".join(job.subprotocols)))
    listener = Performer(job.task)
    try:
        transport, _ = await picows.ws_connect(
            lambda: listener,
            job.uri,
            ssl_context=client_context() if job.uri.startswith("wss:") else None,
            extra_headers=headers,
            **options(job.variant),
        )
        await transport.wait_disconnected()
    except picows.WSInvalidStatusError as exc:
        listener.record.failed(exc)
        if exc.response is not None:
            listener.record.refused(int(exc.response.status), (exc.raw_body or b"").decode())
        listener.record.emit()
    except (picows.WSError, OSError) as exc:
        listener.record.failed(exc)
        listener.record.emit()


def answer(request: picows.WSUpgradeRequest) -> picows.WSUpgradeResponseWithListener:
    task = Task.parse(request.path.decode())
    if task.name == "reject":
        response = picows.WSUpgradeResponse.create_error_response(403, REFUSAL.encode())
        return picows.WSUpgradeResponseWithListener(response, None)
    offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    headers = [("Sec-WebSocket-Protocol", name) for name in SUBPROTOCOLS if name in offered][:1]
    response = picows.WSUpgradeResponse.create_101_response(headers)
    return picows.WSUpgradeResponseWithListener(response, Performer(task))


async def serve() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    ports, servers = {}, []
    for variant in VARIANTS:
        context = server_context() if variant == "tls" else None
        server = await picows.ws_create_server(answer, "127.0.0.1", 0, ssl=context, **options(variant))
        servers.append(server)
        ports[variant] = server.sockets[0].getsockname()[1]
    announce(ports)
    until_input_ends(lambda: loop.call_soon_threadsafe(stop.set))
    await stop.wait()
    for server in servers:
        server.close()


if __name__ == "__main__":
    if mode() == "server":
        asyncio.run(serve())
    else:
        for given in jobs():
            asyncio.run(run(given))
