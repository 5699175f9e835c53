"""Servers with small limits, a program: ``serving KIND CERT KEY``.

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
from campaigns.common.echo import Listener, application, handle, handler
from campaigns.common.program import Log, answer, serve_questions

from .target import CLOSE_TIMEOUT, OPEN_TIMEOUT

# Limits of the opening handshake: number and time.
LIMITS: dict[str, Any] = {"open_timeout": OPEN_TIMEOUT, "close_timeout": CLOSE_TIMEOUT}
PENDING = 50


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
            return {"connections": connections, "tasks": len(asyncio.all_tasks()), **log.since_last()}

        answer({"ports": {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}})
        await asyncio.to_thread(serve_questions, lambda: asyncio.run_coroutine_threadsafe(state(), loop).result(30))


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
    serve_questions(
        lambda: {"connections": sum(len(server.connections) for server in servers.values()), **log.since_last()}
    )
    for server in servers.values():
        server.shutdown()


def serve_uvicorn(cert: str, key: str) -> None:
    from support.uvicorn_server import UvicornServer

    log = Log()
    options: dict[str, Any] = {"lifespan": "off", "log_level": "warning", "ws_max_size": 2**20}
    with (
        UvicornServer(application, **options) as plain,
        UvicornServer(application, ssl_certfile=cert, ssl_keyfile=key, **options) as secure,
    ):
        answer({"ports": {"plain": plain.address[1], "tls": secure.address[1]}})
        serve_questions(lambda: {"connections": plain.connections + secure.connections, **log.since_last()})


def main(kind: str, cert: str, key: str) -> None:
    if kind == "sync":
        serve_sync(cert, key)
    elif kind == "uvicorn":
        serve_uvicorn(cert, key)
    else:
        asyncio.run(serve_asyncio(kind, cert, key))
