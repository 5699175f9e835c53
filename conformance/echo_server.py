"""The server under test. It echoes every message without limits, prints its port, and ends when its standard input
ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
from pathlib import Path
from typing import Any

from runner.awaiting import Echo, new_loop
from runner.certificate import Certificate
from runner.ends import LIBRARIES, End, chosen
from runner.libraries import ALL_OF_A_CASE, asynchronous_server, blocking_server, identified


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def serve_asyncio(end: End, library: str, certificate: Certificate | None) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    serve = asynchronous_server(library, end.port if library == "wirespeed" else None)
    options = identified(certificate)
    if end.api == "listener":
        options |= {"handler": None, "listener": Echo, "write_limit": ALL_OF_A_CASE}
    else:
        options["handler"] = echo
    async with serve(host="127.0.0.1", port=0, **options) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await ended


def echo_blocking(ws: Any) -> None:
    for message in ws:
        ws.send(message)


def serve_sync(library: str, certificate: Certificate | None) -> None:
    with blocking_server(library)(echo_blocking, "127.0.0.1", 0, **identified(certificate)) as server:
        print(server.socket.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
        server.serve_forever()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that echoes messages."""
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({**event, "type": "websocket.send"})


async def serve_uvicorn(loop: str, certificate: Certificate | None) -> None:
    import uvicorn

    from wirespeed.asgi import WebSocketProtocol

    class Unlimited(WebSocketProtocol):
        # Messages of the suite have up to 65,536.
        max_fragments = None

    files = {} if certificate is None else {"ssl_certfile": certificate.cert, "ssl_keyfile": certificate.key}
    # The largest message of the suite has 16 MiB.
    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=0,
        ws=Unlimited,
        loop=loop,
        lifespan="off",
        log_config=None,
        ws_max_size=2**25,
        ws_ping_interval=0,
        **files,
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.should_exit = True
    await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("end", help="its name")
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the files of a certificate may be made")
    options = parser.parse_args()
    # An error that the library reports is a problem of the library, because the suite breaks every rule on purpose.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    [end] = chosen([options.end], options.library)
    certificate = Certificate.make(options.folder) if end.tls else None
    if end.api == "sync":
        serve_sync(options.library, certificate)
        return
    loop = new_loop(end.loop or "asyncio")
    try:
        if end.api == "uvicorn":
            loop.run_until_complete(serve_uvicorn(end.loop or "asyncio", certificate))
        else:
            loop.run_until_complete(serve_asyncio(end, options.library, certificate))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
