"""The server under test: it echoes everything, without limits, and prints its port. It ends with its standard input."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import threading
from typing import Any

from runner.awaiting import new_loop
from runner.libraries import asynchronous_server, blocking_server
from runner.testees import APIS, LIBRARIES, LOOPS, PORTS


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def serve_asyncio(library: str, port: str | None) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with asynchronous_server(library, port)(echo, "127.0.0.1", 0) as server:
        print(next(iter(server.sockets)).getsockname()[1], flush=True)
        await ended


def echo_blocking(ws: Any) -> None:
    for message in ws:
        ws.send(message)


def serve_sync(library: str) -> None:
    with blocking_server(library)(echo_blocking, "127.0.0.1", 0) as server:
        print(server.socket.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--library", choices=LIBRARIES, required=True)
    parser.add_argument("--api", choices=APIS, required=True)
    parser.add_argument("--port", choices=PORTS)
    parser.add_argument("--loop", choices=LOOPS, default="asyncio")
    options = parser.parse_args()
    # What the library reports as an error is a problem of the library: the suite breaks every rule.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    if options.api == "sync":
        serve_sync(options.library)
        return
    loop = new_loop(options.loop)
    try:
        loop.run_until_complete(serve_asyncio(options.library, options.port))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
