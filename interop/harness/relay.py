"""A TCP relay that counts the bytes on the wire, independently of the ends' own reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["Relay", "relaying"]


class Relay:
    """A running relay.

    Attributes:
        port: Where it listens, on the loopback interface.
        upstream: Bytes that went to the server.
        downstream: Bytes that came from it.
    """

    def __init__(self) -> None:
        self.port = 0
        self.upstream = 0
        self.downstream = 0

    def _count(self, way: str, size: int) -> None:
        setattr(self, way, getattr(self, way) + size)


@contextlib.asynccontextmanager
async def relaying(target: int) -> AsyncIterator[Relay]:
    """Relays connections to a port of the loopback interface."""
    relay = Relay()
    tasks: list[asyncio.Task[None]] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                relay._count(way, len(data))
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", target)
            with contextlib.closing(server_writer):
                await asyncio.gather(copy(reader, server_writer, "upstream"), copy(server_reader, writer, "downstream"))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(join(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
