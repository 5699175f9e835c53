"""A client and a server of the same or different packages, and a server that sends nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from websockets.server import ServerProtocol

__all__ = ["connected", "connected_blocking", "run", "silent_server"]


def run(main: Callable[[], Any]) -> None:
    """Runs a coroutine function for at most 20 s."""
    asyncio.run(asyncio.wait_for(main(), 20))


@contextlib.asynccontextmanager
async def connected(client: Any, server: Any, handler: Any, path: str = "/", **options: Any) -> AsyncIterator[Any]:
    """Yields a client's connection to a server, each of either package."""
    async with server.asyncio.server.serve(handler, "127.0.0.1", 0) as running:
        uri = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}{path}"
        async with client.asyncio.client.connect(uri, **options) as ws:
            yield ws


@contextlib.contextmanager
def connected_blocking(client: Any, server: Any, handler: Any, **options: Any) -> Iterator[Any]:
    """Yields a client's connection to a server, with threads."""
    with server.sync.server.serve(handler, "127.0.0.1", 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            uri = f"ws://127.0.0.1:{running.socket.getsockname()[1]}"
            with client.sync.client.connect(uri, **options) as ws:
                yield ws
        finally:
            running.shutdown()
            thread.join()


@contextlib.contextmanager
def silent_server(*, close_code: int | None = None) -> Iterator[str]:
    """A server that accepts and then sends only a close frame, if a code is given, and does not close the
    connection.
    """
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                protocol = ServerProtocol()
                while not (events := protocol.events_received()):
                    protocol.receive_data(sock.recv(4096))
                protocol.send_response(protocol.accept(events[0]))  # type: ignore[arg-type]
                if close_code is not None:
                    protocol.send_close(close_code, "going")
                sock.sendall(b"".join(protocol.data_to_send()))
                done.wait(20)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join()
