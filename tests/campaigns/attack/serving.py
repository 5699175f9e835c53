"""Servers with small limits, in a process of their own: ``child.py serving KIND CERT KEY``.

Kinds are ``asyncio-fd`` and ``asyncio-transport``, ``listener-fd`` and ``listener-transport``, ``sync`` and
``uvicorn``. Paths: ``/big`` answers each message with a large one, ``/news`` sends each message to all connections,
others echo. The port ``tls`` serves them encrypted.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import wirespeed

from .answering import Log, answer, serve_questions
from .target import CLOSE_TIMEOUT, OPEN_TIMEOUT

__all__ = ["BIG", "LIMITS", "main"]

# Limits of the opening handshake: number and time.
LIMITS: dict[str, Any] = {"open_timeout": OPEN_TIMEOUT, "close_timeout": CLOSE_TIMEOUT}
PENDING = 50

BIG = bytes(2**18)

news: set[Any] = set()


async def handler(ws: Any) -> None:
    if ws.request.path == "/big":
        async for _ in ws:
            await ws.send(BIG)
    elif ws.request.path == "/news":
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
        if self.path == "/news":
            news.add(ws)

    def on_message(self, ws: Any, message: Any) -> None:
        try:
            if self.path == "/news":
                wirespeed.broadcast(news, message)
            else:
                ws.send_nowait(BIG if self.path == "/big" else message)
        except BlockingIOError:
            # Clients that do not read are dropped.
            ws.abort()

    def on_close(self, ws: Any, code: int, reason: str) -> None:
        news.discard(ws)


async def serve_asyncio(kind: str, cert: str, key: str) -> None:
    what, _, port = kind.partition("-")
    given: dict[str, Any] = {**LIMITS, "max_pending": PENDING, "io_backend": port}
    if what == "listener":
        given["listener"] = Listener
    serve = functools.partial(wirespeed.serve, handler if what == "asyncio" else None, "127.0.0.1", 0, **given)
    log, loop = Log(), asyncio.get_running_loop()
    async with serve() as plain, serve(ssl=wirespeed.TLS(cert=cert, key=key)) as secure:
        servers = {"plain": plain, "tls": secure}

        async def state() -> dict[str, Any]:
            connections = sum(len(server.connections) for server in servers.values())
            return {"connections": connections, "tasks": len(asyncio.all_tasks()), **log.told()}

        answer({"ports": {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}})
        await asyncio.to_thread(serve_questions, lambda: asyncio.run_coroutine_threadsafe(state(), loop).result(30))


def handle(ws: Any) -> None:
    for message in ws:
        ws.send(BIG if ws.request.path == "/big" else message)


def serve_sync(cert: str, key: str) -> None:
    from wirespeed.sync import serve

    log = Log()
    options: dict[str, Any] = {**LIMITS, "max_pending": PENDING}
    servers = {
        "plain": serve(handle, "127.0.0.1", 0, **options),
        "tls": serve(handle, "127.0.0.1", 0, ssl=wirespeed.TLS(cert=cert, key=key), **options),
    }
    threads = [threading.Thread(target=server.serve_forever) for server in servers.values()]
    for thread in threads:
        thread.start()
    answer({"ports": {name: server.socket.getsockname()[1] for name, server in servers.items()}})
    serve_questions(lambda: {"connections": sum(len(server.connections) for server in servers.values()), **log.told()})
    for server in servers.values():
        server.shutdown()


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


def serve_uvicorn(cert: str, key: str) -> None:
    from interop.uvicorn_server import UvicornServer

    log = Log()
    options: dict[str, Any] = {"lifespan": "off", "log_level": "warning", "ws_max_size": 2**20}
    with (
        UvicornServer(application, **options) as plain,
        UvicornServer(application, ssl_certfile=cert, ssl_keyfile=key, **options) as secure,
    ):
        answer({"ports": {"plain": plain.address[1], "tls": secure.address[1]}})
        serve_questions(lambda: {"connections": plain.connections + secure.connections, **log.told()})


def main(kind: str, cert: str, key: str) -> None:
    if kind == "sync":
        serve_sync(cert, key)
    elif kind == "uvicorn":
        serve_uvicorn(cert, key)
    else:
        asyncio.run(serve_asyncio(kind, cert, key))
