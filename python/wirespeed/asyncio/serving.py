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

from .._native import Opened, ServerOpening, ServerSettings, ServerTLS
from ..datastructures import Response
from ..exceptions import InvalidHandshake, InvalidOrigin, NegotiationError
from ..responses import common_fields, plain_response
from ..server_options import AsyncServerOptions
from ..typing import LoggerLike
from .connection import Connection
from .sockets import receive, send_all

__all__ = ["negotiate", "receive_request"]

# A request head is at most 16 KiB.
_READ_SIZE = 2**15

# How long a client that was refused may take to read why.
_LINGER = 2.0

_FAILED = "Failed to open a WebSocket connection.\nSee server log for more information.\n"


async def receive_request(
    sock: socket_module.socket, settings: ServerSettings, tls: ServerTLS | Any | None, logger: LoggerLike
) -> Opened:
    """Make the TLS handshake, if there is TLS, and receive the request.

    Args:
        sock: An accepted non-blocking socket.
        settings: Those of the server.
        tls: Native TLS settings or an ``ssl.SSLContext``, ``None`` for none.
        logger: For hints that the client will not pass on.

    Returns:
        The argument of a connection's constructor; the connection answers the request.

    Raises:
        InvalidHandshake: What came is no HTTP request. The client was told.
        OSError: The socket failed.
        ssl.SSLError: TLS failed.
    """
    opening = ServerOpening(settings)
    if tls is not None:
        opening.start_tls(tls)
    first = True
    while not opening.done:
        data = await receive(sock, _READ_SIZE)
        try:
            if data:
                opening.feed(data)
            else:
                opening.feed_eof()
        except BaseException:
            if first:
                _hint(data, tls is not None, sock, logger)
            if output := opening.take_output():
                with contextlib.suppress(OSError):
                    sock.send(output)
                await _linger(sock)
            raise
        first = False
        if output := opening.take_output():
            await send_all(sock, output)
    return opening.finish()


def _hint(data: bytes, is_tls: bool, sock: socket_module.socket, logger: LoggerLike) -> None:
    """Say in the log what the client cannot be told in a language that it speaks."""
    # RFC 8446, section 5.1: a handshake record begins with 22 and the version 3.x.
    if not is_tls and data[:2] == b"\x16\x03":
        logger.warning(
            "a client speaks TLS to a port without TLS (%s): it should connect to ws://, or the server needs ssl=",
            _name(sock),
        )
    elif is_tls and data[:4] in (b"GET ", b"HEAD", b"POST"):
        logger.warning(
            "a client speaks plain HTTP to a port with TLS (%s): it should connect to wss:// or https://", _name(sock)
        )


def _name(sock: socket_module.socket) -> str:
    with contextlib.suppress(OSError):
        return f"{sock.getpeername()} -> {sock.getsockname()}"
    return "gone"


async def _linger(sock: socket_module.socket) -> None:
    """Let a client read what it was told: with bytes unread, closing would reset the connection before it has."""

    async def drain() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket_module.SHUT_WR)
            while await receive(sock, _READ_SIZE):
                pass

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(drain(), _LINGER)


async def negotiate(connection: Any, options: AsyncServerOptions, is_closing: Callable[[], bool]) -> Exception | None:
    """Answer the request of a connection, as the application and the rules will have it.

    Args:
        connection: A server's connection.
        options: Those of the server.
        is_closing: Whether the server closes, so that nobody is accepted any more.

    Returns:
        Why the connection was refused, if it was.
    """
    if not options.has_hooks and not is_closing():
        error: Exception | None = connection._answer(common_fields(options.server_header))
        return error
    request = connection.request
    response: Response | None = None
    error = None
    if options.process_request is not None:
        response, error = await _ask("process_request", options.process_request, connection, request)
    if response is None:
        response, error = _draft(connection, options)
    if options.server_header is not None and "Server" not in response.headers:
        response.headers["Server"] = options.server_header
    if options.process_response is not None:
        other, failure = await _ask("process_response", options.process_response, connection, request, response)
        if other is not None:
            response, error = other, failure
    if response.status_code == 101 and is_closing():
        response = plain_response(503, "Server is shutting down.\n")
    try:
        connection._respond(response)
    except InvalidHandshake as exc:
        # An application that accepts what is no request for a WebSocket.
        connection._respond(connection._draft(True, None, common_fields(options.server_header))[0])
        return exc
    if response.status_code != 101 and error is None:
        error = InvalidHandshake(f"refused with status {response.status_code}")
    return error


async def _ask(
    name: str, function: Callable[..., Any], connection: Connection, *arguments: Any
) -> tuple[Response | None, Exception | None]:
    try:
        response = function(connection, *arguments)
        if isinstance(response, Awaitable):
            response = await response
        if response is not None and not isinstance(response, Response):
            raise TypeError(f"{name} must return a Response or None, not {type(response).__name__}")
    except Exception as exc:
        connection.logger.error("%s failed", name, exc_info=True)
        return plain_response(500, _FAILED), exc
    return response, None


def _draft(connection: Any, options: AsyncServerOptions) -> tuple[Response, Exception | None]:
    """Return the response that a request deserves."""
    fields = common_fields(None)
    try:
        options.check_origin(connection.request.headers)
        if options.select_subprotocol is None:
            response, error = connection._draft(True, None, fields)
        else:
            chosen = options.select_subprotocol(connection, connection._offered_subprotocols())
            response, error = connection._draft(False, chosen, fields)
    except InvalidOrigin as exc:
        return plain_response(403, f"Failed to open a WebSocket connection: {exc}.\n"), exc
    except NegotiationError as exc:
        return plain_response(400, f"Failed to open a WebSocket connection: {exc}.\n"), exc
    except Exception as exc:
        connection.logger.error("opening handshake failed", exc_info=True)
        return plain_response(500, _FAILED), exc
    return response, error
