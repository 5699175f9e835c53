"""Our APIs, each with a client and a server, behind the methods of the asyncio connection."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import wirespeed
import wirespeed.sync

__all__ = ["DEADLINE", "WAYS", "Way"]

# Longer than any wait of a test.
DEADLINE = 20.0


class Blocking:
    """A blocking connection with the methods of an asyncio one; each call runs in a thread."""

    def __init__(self, ws: Any) -> None:
        self.ws = ws

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ws, name)

    async def recv(self) -> str | bytes:
        return await asyncio.to_thread(self.ws.recv, DEADLINE)

    async def recv_streaming(self) -> AsyncIterator[str | bytes]:
        for fragment in await asyncio.to_thread(lambda: list(self.ws.recv_streaming())):
            yield fragment

    async def send(self, message: Any, **options: Any) -> None:
        await asyncio.to_thread(self.ws.send, message, **options)

    async def send_many(self, messages: Any) -> None:
        await asyncio.to_thread(self.ws.send_many, messages)

    async def ping(self, data: Any = None) -> Any:
        waiter = await asyncio.to_thread(self.ws.ping, data)
        return asyncio.ensure_future(asyncio.to_thread(waiter.wait, DEADLINE))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        await asyncio.to_thread(self.ws.close, code, reason)

    async def wait_closed(self) -> None:
        """Reads until the end, because no other code reads."""

        def read() -> None:
            with contextlib.suppress(wirespeed.ConnectionClosed):
                while True:
                    self.ws.recv(DEADLINE)

        await asyncio.to_thread(read)


@dataclasses.dataclass(frozen=True)
class Way:
    """An API; for asyncio also the loop and the I/O backend of the connection."""

    name: str
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    io_backend: Literal["fd", "transport"] | None = None

    def __str__(self) -> str:
        return self.name

    async def connect(self, uri: str, **options: Any) -> Any:
        """Opens a connection."""
        if self.io_backend is not None:
            return await wirespeed.connect(uri, io_backend=self.io_backend, **options)
        return Blocking(await asyncio.to_thread(lambda: wirespeed.sync.connect(uri, **options)))

    @contextlib.asynccontextmanager
    async def serve(self, take: Callable[[Any], None], **options: Any) -> AsyncIterator[int]:
        """Run a server on a port of the loopback interface, which it yields.

        Args:
            take: Called on the loop with each connection. They stay open as long as the server.
            options: Further arguments of ``serve``.
        """
        if self.io_backend is None:
            async with self._serve_blocking(take, **options) as port:
                yield port
            return
        ended = asyncio.Event()

        async def handle(ws: Any) -> None:
            take(ws)
            await ended.wait()

        async with wirespeed.serve(handle, "127.0.0.1", 0, io_backend=self.io_backend, **options) as server:
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                ended.set()

    @contextlib.asynccontextmanager
    async def _serve_blocking(self, take: Callable[[Any], None], **options: Any) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        ended = threading.Event()

        def handle(ws: Any) -> None:
            loop.call_soon_threadsafe(take, Blocking(ws))
            ended.wait(2 * DEADLINE)

        with wirespeed.sync.serve(handle, "127.0.0.1", 0, **options) as server:
            thread = threading.Thread(target=server.serve_forever, name="interop-server")
            thread.start()
            try:
                yield server.socket.getsockname()[1]
            finally:
                ended.set()
                await asyncio.to_thread(server.shutdown)
                await asyncio.to_thread(thread.join, DEADLINE)


WAYS = [
    Way("fd", io_backend="fd"),
    Way("transport", io_backend="transport"),
    Way("loop", wirespeed.new_event_loop, "fd"),
    Way("sync"),
]
