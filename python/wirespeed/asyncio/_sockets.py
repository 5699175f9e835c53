"""Bytes from and to a non-blocking socket, for coroutines that open a connection.

What ``loop.sock_recv`` and ``loop.sock_sendall`` do, by ``add_reader`` and ``add_writer`` alone. Those of rloop leave a
descriptor registered, which ends the process when its number is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from .._native import ConnectedSocket, LoopState

__all__ = ["abandon", "ignore", "ready", "receive", "send_all", "until_ready", "watches_descriptors"]

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
    """Return when the system has taken all of the data.

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
    """Return when a socket can be read from or, if this is asked for, written to. It is watched no longer then.

    Args:
        sock: A connected non-blocking socket.
        to_read: Whether to wait until it can be read from.
        to_write: Whether to wait until it can be written to.

    Raises:
        NotImplementedError: The loop watches no descriptors.
    """
    descriptor = sock.fileno()
    try:
        await until_ready(descriptor, to_read=to_read, to_write=to_write)
    finally:
        # Closed by somebody else, its number may be another socket's already.
        if sock.fileno() >= 0:
            ignore(descriptor)


async def until_ready(descriptor: int, *, to_read: bool = True, to_write: bool = False) -> None:
    """Return when a descriptor can be read from or written to. It may be watched on, until it is ignored.

    Args:
        descriptor: Its number. It is open, and is not closed meanwhile, unless it is ignored first.
        to_read: Whether to wait until it can be read from.
        to_write: Whether to wait until it can be written to.

    Raises:
        NotImplementedError: The loop watches no descriptors.
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
    """Have the loop watch a descriptor no longer.

    Args:
        descriptor: Its number.
    """
    with contextlib.suppress(NotImplementedError):
        LoopState.of(asyncio.get_running_loop())._ignore(descriptor)


def abandon(connected: ConnectedSocket) -> None:
    """Close a socket that the loop may watch.

    Args:
        connected: The socket. Nothing happens if somebody has taken it.
    """
    with contextlib.suppress(OSError):
        ignore(connected.fileno())
    connected.close()


def _set(ready: asyncio.Future[Any]) -> None:
    # It is called again in each turn of the loop, until it is removed.
    if not ready.done():
        ready.set_result(None)
