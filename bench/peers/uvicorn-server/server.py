"""FastAPI under uvicorn: with its default WebSocket protocol, or with that of wirespeed.

At /sink, it counts; at /fan-out, every client gets what any client sends, in the way of FastAPI's documentation.
"""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from serving.server import BACKLOG, parse, ready, report, run

OPTIONS = parse()
EVERYBODY: list[WebSocket] = []

app = FastAPI()


@app.websocket("/")
async def echo(ws: WebSocket) -> None:
    await ws.accept()
    # Text goes back as text: `receive_bytes` would take no text.
    while (message := await ws.receive())["type"] == "websocket.receive":
        if (data := message.get("bytes")) is not None:
            await ws.send_bytes(data)
        else:
            await ws.send_text(message["text"])


@app.websocket("/sink")
async def sink(ws: WebSocket) -> None:
    await ws.accept()
    messages = size = 0
    while (message := await ws.receive())["type"] == "websocket.receive":
        if (data := message.get("bytes")) is not None:
            messages += 1
            size += len(data)
        else:
            await ws.send_text(report(messages, size))


@app.websocket("/fan-out")
async def fan_out(ws: WebSocket) -> None:
    await ws.accept()
    EVERYBODY.append(ws)
    try:
        while True:
            message = await ws.receive_bytes()
            for other in EVERYBODY:
                await other.send_bytes(message)
    except WebSocketDisconnect:
        EVERYBODY.remove(ws)


async def main() -> None:
    config = uvicorn.Config(
        app,
        ws="wirespeed.asgi:WebSocketProtocol" if OPTIONS.style == "wirespeed" else "auto",
        ws_ping_interval=OPTIONS.ping_interval,
        ws_per_message_deflate=OPTIONS.deflate,
        backlog=BACKLOG,
        log_level="error",
        access_log=False,
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    # Who comes before it serves waits in the queue of the system.
    ready(listener.getsockname()[1])
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    run(OPTIONS.loop, main)
