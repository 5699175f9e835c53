"""Reading and writing non-blocking sockets, for coroutines that open a connection.

It does what ``loop.sock_recv`` and ``loop.sock_sendall`` do, but uses only ``add_reader`` and ``add_writer``. The
methods of rloop leave a descriptor registered, which ends the process when its number is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from .._native import ConnectedSocket, LoopState

__all__ = ["abandon", "ignore", "ready", "receive", "send_all", "until_ready", "watches_descriptors"]

# The proactor loop exists on Windows only.
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
    """Receive bytes; the result is empty at the end of the stream.

    Args:
        sock: A connected non-blocking socket.
        size: Maximum number of bytes.

    Raises:
        OSError: The socket failed.
    """
    while True:
        try:
            return sock.recv(size)
        except (BlockingIOError, InterruptedError):
            pass
        try:
            await ready(sock)
        except NotImplementedError:
            return await asyncio.get_running_loop().sock_recv(sock, size)


async def send_all(sock: socket.socket, data: bytes) -> None:
    """Send bytes, and return when the system has taken all of them.

    Args:
        sock: A connected non-blocking socket.
        data: The data.

    Raises:
        OSError: The socket failed.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except (BlockingIOError, InterruptedError):
            try:
                await ready(sock, to_read=False, to_write=True)
            except NotImplementedError:
                return await asyncio.get_running_loop().sock_sendall(sock, rest)
    return None


async def ready(sock: socket.socket, *, to_read: bool = True, to_write: bool = False) -> None:
    """Wait until a socket is ready for reading or writing. Afterwards it is not watched any more.

    Args:
        sock: A connected non-blocking socket.
        to_read: Whether to wait until the socket is readable.
        to_write: Whether to wait until the socket is writable.

    Raises:
        NotImplementedError: The loop cannot watch descriptors.
    """
    descriptor = sock.fileno()
    try:
        await until_ready(descriptor, to_read=to_read, to_write=to_write)
    finally:
        # If the socket was closed meanwhile, another socket may have the same descriptor.
        if sock.fileno() >= 0:
            ignore(descriptor)


async def until_ready(descriptor: int, *, to_read: bool = True, to_write: bool = False) -> None:
    """Wait until a descriptor is ready for reading or writing. The loop may watch it until :func:`ignore` is called.

    Args:
        descriptor: The descriptor. Do not close it meanwhile, unless :func:`ignore` is called first.
        to_read: Whether to wait until it is readable.
        to_write: Whether to wait until it is writable.

    Raises:
        NotImplementedError: The loop cannot watch descriptors.
    """
    loop = asyncio.get_running_loop()
    waiting = LoopState.of(loop)._ready(descriptor, to_read, to_write)
    if waiting is not None:
        return await waiting
    future: asyncio.Future[None] = loop.create_future()
    try:
        if to_read:
            loop.add_reader(descriptor, _set, future)
        if to_write:
            loop.add_writer(descriptor, _set, future)
        await future
    finally:
        with contextlib.suppress(NotImplementedError):
            if to_read:
                loop.remove_reader(descriptor)
            if to_write:
                loop.remove_writer(descriptor)
    return None


def ignore(descriptor: int) -> None:
    """Stop watching a descriptor.

    Args:
        descriptor: The descriptor.
    """
    with contextlib.suppress(NotImplementedError):
        LoopState.of(asyncio.get_running_loop())._ignore(descriptor)


def abandon(connected: ConnectedSocket) -> None:
    """Close a socket that the loop may watch.

    Args:
        connected: The socket. If it is detached, nothing happens.
    """
    with contextlib.suppress(OSError):
        ignore(connected.fileno())
    connected.close()


def _set(ready: asyncio.Future[Any]) -> None:
    # The loop calls it in each iteration, until it is removed.
    if not ready.done():
        ready.set_result(None)
