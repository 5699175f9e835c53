"""A FastAPI echo endpoint under uvicorn: with its default WebSocket protocol, or with that of wirespeed."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from peers.server_program import parse, ready, run

OPTIONS = parse()

app = FastAPI()


@app.websocket("/")
async def echo(ws: WebSocket) -> None:
    await ws.accept()
    try:
        while True:
            await ws.send_bytes(await ws.receive_bytes())
    except WebSocketDisconnect:
        pass


async def main() -> None:
    ws = "wirespeed.asgi:WebSocketProtocol" if OPTIONS.style == "wirespeed" else "auto"
    config = uvicorn.Config(app, host="127.0.0.1", port=0, ws=ws, log_level="error", access_log=False)
    server = uvicorn.Server(config)
    startup = server.startup

    async def announce(sockets: object = None) -> None:
        await startup(sockets)  # type: ignore[arg-type]
        ready(server.servers[0].sockets[0].getsockname()[1])

    server.startup = announce  # type: ignore[method-assign]
    await server.serve()


if __name__ == "__main__":
    run(OPTIONS.loop, main)
