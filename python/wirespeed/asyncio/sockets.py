"""Bytes from and to a non-blocking socket, for coroutines that open a connection.

What ``loop.sock_recv`` and ``loop.sock_sendall`` do, by ``add_reader`` and ``add_writer`` alone. Those of rloop leave a
descriptor registered, which ends the process when its number is used again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

__all__ = ["receive", "send_all", "watches_descriptors"]

# Only Windows has it.
_Proactor: type | tuple[()] = getattr(asyncio, "ProactorEventLoop", ())


def watches_descriptors(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a loop has ``add_reader`` and ``add_writer``.

    Args:
        loop: The event loop.
    """
    method = getattr(type(loop), "add_reader", None)
    if method is None or method is asyncio.AbstractEventLoop.add_reader:
        return False
    return not isinstance(loop, _Proactor)


async def receive(sock: socket.socket, size: int) -> bytes:
    """Return what arrives next, empty at the end of the stream.

    Args:
        sock: A connected non-blocking socket.
        size: How many bytes at most.

    Raises:
        OSError: The socket failed.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.recv(size)
        except (BlockingIOError, InterruptedError):
            pass
        try:
            await _ready(loop, sock, loop.add_reader, loop.remove_reader)
        except NotImplementedError:
            return await loop.sock_recv(sock, size)


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Return when the system has taken all of the data.

    Args:
        sock: A connected non-blocking socket.
        data: The data.

    Raises:
        OSError: The socket failed.
    """
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except (BlockingIOError, InterruptedError):
            try:
                await _ready(loop, sock, loop.add_writer, loop.remove_writer)
            except NotImplementedError:
                return await loop.sock_sendall(sock, rest)
    return None


async def _ready(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, add: Callable[..., None], remove: Callable[[int], bool]
) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    descriptor = sock.fileno()
    add(descriptor, _set, ready)
    try:
        await ready
    finally:
        # Closed by somebody else, its number may be another socket's already.
        if sock.fileno() >= 0:
            remove(descriptor)


def _set(ready: asyncio.Future[Any]) -> None:
    # It is called again in each turn of the loop, until it is removed.
    if not ready.done():
        ready.set_result(None)
