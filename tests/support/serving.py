"""Our asyncio server on the loop of a test, and clients: of ``websockets``, and raw ones that break every rule."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio import client as websockets_client

from .asyncio_tools import Setting, one_loop
from .frames import CLOSE, Close, Frame, frame
from .load_scaling import load_scaled
from .subject import IS_WIRESPEED

__all__ = [
    "KEY",
    "LOGGER",
    "MASK",
    "ONE_OF_EACH_PORT",
    "Raw",
    "Reply",
    "dial",
    "echo",
    "idle",
    "logged",
    "masked",
    "request",
    "serve",
    "small_sends",
    "unnamed",
    "uri",
]

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
MASK = b"\x01\x82\x43\xc4"
LOGGER = "wirespeed.server"

# The settings of long tables whose subject depends neither on the loop nor on the I/O backend.
ONE_OF_EACH_PORT = list({setting.io_backend: setting for setting in one_loop()}.values())

# A connection with its id, or an address.
_NAMED = re.compile(r" \(([0-9a-f]{8}[0-9a-f-]{28} from )?(127\.0\.0\.1:\d+|\[::1\]:\d+|a Unix socket)( to /[^)]*)?\)")

# Longer than any wait here.
PATIENCE = 10.0


async def echo(ws: Any) -> None:
    async for message in ws:
        await ws.send(message)


async def idle(ws: Any) -> None:
    """Neither receives nor sends until the connection is closed."""
    await ws.wait_closed()


def serve(
    setting: Setting,
    handler: Callable[..., Awaitable[None]] | None = echo,
    host: Any = "127.0.0.1",
    port: int | None = 0,
    **options: Any,
) -> Any:
    """``wirespeed.serve`` with the I/O backend of the setting."""
    assert IS_WIRESPEED
    import wirespeed

    options.setdefault("io_backend", setting.io_backend)
    return wirespeed.serve(handler, host, port, **options)


def small_sends() -> socket.socket:
    """Returns a bound socket for ``serve``, whose accepted sockets have small send buffers."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    sock.bind(("127.0.0.1", 0))
    return sock


def uri(server: Any, path: str = "/", *, scheme: str = "ws", host: str = "127.0.0.1") -> str:
    return f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}{path}"


def dial(where: str, **options: Any) -> Any:
    """``websockets.connect``, without anything that would outlive a test."""
    return websockets_client.connect(where, **{"proxy": None, "ping_interval": None, "max_size": None, **options})


def request(
    path: str = "/",
    *fields: str,
    without: tuple[str, ...] = (),
    start: str | None = None,
) -> bytes:
    """Returns a request for a WebSocket.

    Args:
        path: The target.
        fields: Further header fields, or other values of existing ones.
        without: Names of fields to leave out.
        start: Another first line.
    """
    given = {field.partition(":")[0].lower() for field in fields}
    usual = [
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
    ]
    skipped = given | {name.lower() for name in without}
    kept = [field for field in usual if field.partition(":")[0].lower() not in skipped]
    return "\r\n".join([start or f"GET {path} HTTP/1.1", *kept, *fields, "", ""]).encode()


def masked(opcode: int, payload: bytes = b"", **options: Any) -> bytes:
    """Returns a frame as a client sends it."""
    return frame(opcode, payload, mask=MASK, **options)


@dataclasses.dataclass
class Reply:
    """An HTTP response."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes = b""

    def __getitem__(self, name: str) -> str | None:
        values = self.all(name)
        assert len(values) < 2, values
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field.lower() == name.lower()]


class Raw:
    """A client that writes bytes and reads frames, on the loop of the test. It is a context manager that closes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self.buffer = bytearray()

    @classmethod
    async def connect(cls, server: Any, *, receive_buffer: int | None = None) -> Raw:
        """Connects to the first socket of a server, over TCP or Unix."""
        listening = server.sockets[0]
        sock = socket.socket(listening.family, socket.SOCK_STREAM)
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, listening.getsockname())
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    @classmethod
    async def open(cls, server: Any, path: str = "/", *fields: str, **options: Any) -> Raw:
        """Connects and makes the opening handshake."""
        raw = await cls.connect(server, **options)
        try:
            await raw.send(request(path, *fields))
            reply = await raw.head()
            assert reply.status == 101, reply
        except BaseException:
            raw.close()
            raise
        return raw

    def __enter__(self) -> Raw:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self.loop.sock_sendall(self.sock, data), load_scaled(PATIENCE))

    async def _more(self) -> None:
        data = await asyncio.wait_for(self.loop.sock_recv(self.sock, 65536), load_scaled(PATIENCE))
        if not data:
            raise EOFError
        self.buffer += data

    async def take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            await self._more()
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    async def head(self) -> Reply:
        """Reads the head of a response."""
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            await self._more()
        lines = (await self.take(end + 4))[:-4].decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        return Reply(
            int(status), [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        )

    async def reply(self) -> Reply:
        """Reads a response and its body, up to the end of the stream."""
        reply = await self.head()
        reply.body = await self.rest()
        return reply

    async def rest(self) -> bytes:
        """Reads up to the end of the stream."""
        with contextlib.suppress(EOFError):
            while True:
                await self._more()
        return await self.take(len(self.buffer))

    async def frame(self) -> Frame:
        first, second = await self.take(2)
        size = second & 127
        if size > 125:
            size = int.from_bytes(await self.take(2 if size == 126 else 8), "big")
        assert not second & 128, "a server must not mask"
        return Frame(first & 15, await self.take(size), bool(first & 128), first >> 4 & 7, masked=False)

    async def until_close(self) -> tuple[list[Frame], Close | None]:
        """Reads frames up to a close frame, or the end of the stream: then there is no close frame."""
        frames = []
        try:
            while (received := await self.frame()).opcode != CLOSE:
                frames.append(received)
        except (EOFError, ConnectionError):
            return frames, None
        return frames, Close.parse(received.payload)


def unnamed(texts: list[str]) -> list[str]:
    """Returns log lines without the client's name, which every line about a client has."""
    found = [_NAMED.subn("", text) for text in texts]
    assert all(number == 1 for _, number in found), texts
    return [text for text, _ in found]


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Returns the server's log records at a level or above it."""
    return [entry.getMessage() for entry in caplog.records if entry.name == LOGGER and entry.levelno >= level]
