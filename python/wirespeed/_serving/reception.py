"""From an accepted socket to its request: TLS, if there is any, and the head.

The native core reads and writes the bytes of each step. Nothing here waits: who drives :func:`reception` moves them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .._handshake.negotiation import hint
from .._handshake.pending_handshake import PendingHandshake
from .._handshake.responses import common_fields
from .._native import Opened, ServerOpening, ServerSettings, ServerTLS
from .._options.server import ServerOptions
from .handshake_limiter import HandshakeLimiterBase

__all__ = ["Refusal", "reception"]


class Refusal(bytes):
    """The last that a client is told, which is to have the time to read it.

    With bytes of its own unread, closing would reset the connection before it has.
    """

    __slots__ = ()


def reception(
    pending: PendingHandshake,
    settings: ServerSettings,
    tls: ServerTLS | Any | None,
    options: ServerOptions,
    limiter: HandshakeLimiterBase,
) -> Generator[bytes | None, bytes | None, Opened]:
    """Make the TLS handshake, if there is TLS, and receive the request.

    It yields what is to be sent, and ``None`` for what came next, empty at the end of the stream, which it takes back.

    Args:
        pending: An accepted socket, and what was received already, if anything was.
        settings: Those of the server.
        tls: Native TLS settings or an ``ssl.SSLContext``, ``None`` for none.
        options: Those of the server.
        limiter: Is told what comes.

    Returns:
        The argument of a connection's constructor; the connection answers the request.

    Raises:
        InvalidHandshake: What came is no HTTP request. The client was told.
        ssl.SSLError: TLS failed.
    """
    data, opening = pending.data, pending.opening
    first = opening is None
    if opening is None:
        opening = ServerOpening(settings, tls)
    while not opening.done:
        if data is None:
            data = yield None
            if data:
                pending.is_silent = False
                if pending.entry is not None:
                    limiter.progress(pending.entry)
        try:
            if data:
                opening.feed(data)
            else:
                opening.feed_eof()
        except BaseException:
            if first:
                hint(data or b"", tls is not None, pending, limiter)
            opening.reject(common_fields(options.server_header))
            if output := opening.take_output():
                yield Refusal(output)
            raise
        first, data = False, None
        if output := opening.take_output():
            yield output
    return opening.finish()
