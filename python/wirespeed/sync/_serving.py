"""From an accepted socket to a connection whose opening handshake is answered, for a thread that waits.

The native core reads and writes the bytes of each step and does no I/O; here they are moved over the socket. Who may
connect, and what is done with a connection, is not known here: the server says so.
"""

from __future__ import annotations

import contextlib
import inspect
import socket as socket_module
import time
from collections.abc import Callable
from typing import Any

from .._handshake.greeting import Greeting
from .._handshake.negotiation import LINGER, READ_SIZE, hint, negotiation
from .._handshake.responses import common_fields
from .._native import Opened, ServerOpening, ServerSettings, ServerTLS
from .._options.server import ServerOptions
from ._gate import Gate

__all__ = ["negotiate", "receive_request"]


def receive_request(
    greeting: Greeting,
    settings: ServerSettings,
    tls: ServerTLS | Any | None,
    options: ServerOptions,
    gate: Gate,
) -> Opened:
    """Make the TLS handshake, if there is TLS, and receive the request.

    Args:
        greeting: An accepted socket, and what was received already, if anything was. Its timeout is changed.
        settings: Those of the server.
        tls: Native TLS settings or an ``ssl.SSLContext``, ``None`` for none.
        options: Those of the server.
        gate: Is told what comes.

    Returns:
        The argument of a connection's constructor; the connection answers the request.

    Raises:
        InvalidHandshake: What came is no HTTP request. The client was told.
        OSError: The socket failed.
        TimeoutError: The deadline passed.
        ssl.SSLError: TLS failed.
    """
    sock, deadline, data, opening = greeting.sock, greeting.deadline, greeting.data, greeting.opening
    first = opening is None
    if opening is None:
        opening = ServerOpening(settings, tls)
    while not opening.done:
        if data is None:
            _limit(sock, deadline)
            try:
                data = sock.recv(READ_SIZE)
            except TimeoutError:
                raise _timeout() from None
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
                _send_last(sock, output)
            raise
        first, data = False, None
        if output := opening.take_output():
            _limit(sock, deadline)
            try:
                sock.sendall(output)
            except TimeoutError:
                raise _timeout() from None
    return opening.finish()


def _limit(sock: socket_module.socket, deadline: float | None) -> None:
    """Let the next call on a socket end by a deadline."""
    if deadline is None:
        sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise _timeout()
    sock.settimeout(left)


def _timeout() -> TimeoutError:
    return TimeoutError("timed out while waiting for the request: open_timeout")


def _send_last(sock: socket_module.socket, output: bytes) -> None:
    """Tell a client why, and let it read: with bytes unread, closing would reset the connection before it has."""
    deadline = time.monotonic() + LINGER
    with contextlib.suppress(OSError):
        _limit(sock, deadline)
        sock.sendall(output)
        sock.shutdown(socket_module.SHUT_WR)
        _limit(sock, deadline)
        while sock.recv(READ_SIZE):
            _limit(sock, deadline)


def negotiate(connection: Any, options: ServerOptions, is_closing: Callable[[], bool]) -> Exception | None:
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
            if inspect.iscoroutine(result):
                result.close()  # it is refused for its type: no second word about it
            result = steps.send(result)
    except StopIteration as stop:
        error: Exception | None = stop.value
        return error
