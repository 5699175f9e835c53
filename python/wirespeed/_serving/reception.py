"""Receives the request on an accepted socket, after the TLS handshake if there is TLS.

The native core produces and parses the bytes. The caller of :func:`reception` moves them over the socket.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from .._handshake.negotiation import log_hint
from .._handshake.pending_handshake import PendingHandshake
from .._handshake.responses import common_fields
from .._native import NativeServerOptions, Opened, ServerOpening, ServerTLS
from .._options.server import ServerOptions
from .handshake_limiter import HandshakeLimiterBase

__all__ = ["Refusal", "reception"]


class Refusal(bytes):
    """The last bytes sent to a client, which needs time to read them.

    Closing the socket with unread input would reset the connection, and the client might not see them.
    """

    __slots__ = ()


def reception(
    pending: PendingHandshake,
    settings: NativeServerOptions,
    tls: ServerTLS | Any | None,
    options: ServerOptions,
    limiter: HandshakeLimiterBase,
) -> Generator[bytes | None, bytes | None, Opened]:
    """Perform the TLS handshake, if there is TLS, and receive the request.

    The generator yields bytes to send, or ``None`` to receive bytes, which the caller passes to ``send``; empty bytes
    mean the end of the stream.

    Args:
        pending: An accepted socket, and the bytes received so far.
        settings: The options of the server in native form.
        tls: Native TLS settings or an ``ssl.SSLContext``, ``None`` for no TLS.
        options: The options of the server.
        limiter: Notified of progress.

    Returns:
        The argument of a connection's constructor. The connection answers the request.

    Raises:
        InvalidHandshake: The input is not an HTTP request. A response has been sent.
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
                log_hint(data or b"", tls is not None, pending, limiter)
            opening.reject(common_fields(options.server_header))
            if output := opening.take_output():
                yield Refusal(output)
            raise
        first, data = False, None
        if output := opening.take_output():
            yield output
    return opening.finish()
