"""The echo servers of campaigns, on any kind of server.

At ``/big`` they answer each message with a large one; at ``/news`` and ``/relay/news`` servers of an event loop send
each message to all connections.
"""

from __future__ import annotations

from typing import Any

import wirespeed

BIG = bytes(2**18)
NEWS = ("/news", "/relay/news")

news: set[Any] = set()


async def handler(ws: Any) -> None:
    if ws.request.path == "/big":
        async for _ in ws:
            await ws.send(BIG)
    elif ws.request.path in NEWS:
        news.add(ws)
        try:
            async for message in ws:
                wirespeed.broadcast(news, message)
        finally:
            news.discard(ws)
    else:
        async for message in ws:
            await ws.send(message)


class Listener(wirespeed.Listener):
    def on_open(self, ws: Any) -> None:
        self.path = ws.request.path
        if self.path in NEWS:
            news.add(ws)

    def on_message(self, ws: Any, message: Any) -> None:
        try:
            if self.path in NEWS:
                wirespeed.broadcast(news, message)
            else:
                ws.send_nowait(BIG if self.path == "/big" else message)
        except BlockingIOError:
            # Clients that do not read are dropped.
            ws.abort()

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        news.discard(ws)


def handle(ws: Any) -> None:
    for message in ws:
        ws.send(BIG if ws.request.path == "/big" else message)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        message = {"bytes": BIG} if scope["path"] == "/big" else {name: event.get(name) for name in ("text", "bytes")}
        try:
            await send({"type": "websocket.send", **message})
        except OSError:
            # Its client has gone.
            return
