"""The opening handshake of a server on an event loop: moves bytes over the accepted socket and awaits hooks.

The rules are in :mod:`wirespeed._server.reception` and :mod:`wirespeed._server.negotiate`; the server calls both
functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as socket_module
from collections.abc import Awaitable, Generator
from typing import Any

from .._native import Opened
from .._server.negotiate import LINGER_TIMEOUT, READ_SIZE
from .._server.reception import Refusal
from ._sockets import receive, send_all

__all__ = ["negotiate", "receive_request"]


async def receive_request(sock: socket_module.socket, steps: Generator[bytes | None, bytes | None, Opened]) -> Opened:
    """Run :func:`wirespeed._server.reception.reception`; return its result, and raise its exceptions.

    Args:
        sock: The accepted non-blocking socket.
        steps: The generator that it returned.

    Raises:
        OSError: The socket failed.
    """
    try:
        output = next(steps)
        while True:
            data = None
            if output is None:
                data = await receive(sock, READ_SIZE)
            elif isinstance(output, Refusal):
                await _send_last(sock, output)
            else:
                await send_all(sock, output)
            output = steps.send(data)
    except StopIteration as stop:
        opened: Opened = stop.value
        return opened


async def _send_last(sock: socket_module.socket, output: bytes) -> None:
    async def drain() -> None:
        sock.shutdown(socket_module.SHUT_WR)
        while await receive(sock, READ_SIZE):
            pass

    with contextlib.suppress(OSError):
        sock.send(output)
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(drain(), LINGER_TIMEOUT)


async def negotiate(steps: Generator[Any, Any, Exception | None]) -> Exception | None:
    """Run :func:`wirespeed._server.negotiate.negotiation`; return its result.

    Args:
        steps: The generator that it returned.
    """
    try:
        result = next(steps)
        while True:
            try:
                if isinstance(result, Awaitable):
                    result = await result
            except Exception as exc:
                result = steps.throw(exc)
            else:
                result = steps.send(result)
    except StopIteration as exc:
        error: Exception | None = exc.value
        return error
