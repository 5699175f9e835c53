"""From an accepted socket to a connection whose opening handshake is answered.

The native core reads and writes the bytes of each step and does no I/O; here they are moved over the socket. Who may
connect, and what is done with a connection, is not known here: the server says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as socket_module
from collections.abc import Awaitable, Callable
from typing import Any

from .._handshake.greeting import Greeting
from .._handshake.negotiation import LINGER, READ_SIZE, hint, negotiation
from .._handshake.responses import common_fields
from .._native import Opened, ServerOpening, ServerSettings, ServerTLS
from .._options.server import AsyncServerOptions
from ._gate import Gate
from ._sockets import receive, send_all

__all__ = ["negotiate", "receive_request"]


async def receive_request(
    greeting: Greeting,
    settings: ServerSettings,
    tls: ServerTLS | Any | None,
    options: AsyncServerOptions,
    gate: Gate,
) -> Opened:
    """Make the TLS handshake, if there is TLS, and receive the request.

    Args:
        greeting: An accepted non-blocking socket, and what was received already, if anything was.
        settings: Those of the server.
        tls: Native TLS settings or an ``ssl.SSLContext``, ``None`` for none.
        options: Those of the server.
        gate: Is told what comes.

    Returns:
        The argument of a connection's constructor; the connection answers the request.

    Raises:
        InvalidHandshake: What came is no HTTP request. The client was told.
        OSError: The socket failed.
        ssl.SSLError: TLS failed.
    """
    sock, data, opening = greeting.sock, greeting.data, greeting.opening
    first = opening is None
    if opening is None:
        opening = ServerOpening(settings, tls)
    while not opening.done:
        if data is None:
            data = await receive(sock, READ_SIZE)
            if data:
                greeting.is_silent = False
                if greeting.entry is not None:
                    gate.progress(greeting.entry)
        try:
            if data:
                opening.feed(data)
            else:
                opening.feed_eof()
        except BaseException:
            if first:
                hint(data, tls is not None, greeting, gate)
            opening.reject(common_fields(options.server_header))
            if output := opening.take_output():
                with contextlib.suppress(OSError):
                    sock.send(output)
                await _linger(sock)
            raise
        first, data = False, None
        if output := opening.take_output():
            await send_all(sock, output)
    return opening.finish()


async def _linger(sock: socket_module.socket) -> None:
    """Let a client read what it was told: with bytes unread, closing would reset the connection before it has."""

    async def drain() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket_module.SHUT_WR)
            while await receive(sock, READ_SIZE):
                pass

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(drain(), LINGER)


async def negotiate(connection: Any, options: AsyncServerOptions, is_closing: Callable[[], bool]) -> Exception | None:
    """Answer the request of a connection, as the application and the rules will have it.

    Args:
        connection: A server's connection.
        options: Those of the server.
        is_closing: Whether the server closes, so that nobody is accepted any more.

    Returns:
        Why the connection was refused, if it was.
    """
    steps = negotiation(connection, options, is_closing)
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
