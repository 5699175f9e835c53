"""The decision of a server between request and response, including the hooks of the application.

It does no I/O. The caller of :func:`negotiation` receives the results of hooks, and awaits them on an event loop.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Generator
from typing import Any, Protocol

from .._connection import State, address_text
from .._native import Handshake
from .._options.server import ServerOptions
from ..datastructures import Headers, Response
from ..exceptions import ConnectionClosed, InvalidHandshake, InvalidHeader, InvalidOrigin, NegotiationError
from ..typing import LoggerLike
from .accept_key import offered_subprotocols, recompute_accept
from .pending_handshake import PendingHandshake
from .responses import common_fields, plain_response

__all__ = [
    "LINGER_TIMEOUT",
    "READ_SIZE",
    "answer",
    "log_hint",
    "is_peer_error",
    "negotiation",
    "refuse",
    "log_handshake_error",
    "log_refusal",
]

READ_SIZE = 2**15
"""Bytes to receive in one call. A request head has at most 16 KiB."""

LINGER_TIMEOUT = 2.0
"""Seconds that a refused client has to read the response, if no other timeout applies."""

_FAILED = "Failed to open a WebSocket connection.\nSee server log for more information.\n"


class HandshakeLimiter(Protocol):
    """The log methods of the handshake limiters of all servers."""

    def throttled_log(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> None:
        """Log an event, or count it."""
        ...

    def throttled_log_start(self, address: Any, kind: str, level: int, text: str, *arguments: Any) -> bool:
        """Count an event; return whether it is the first of its kind, which the caller must log."""
        ...


def negotiation(
    connection: Any, options: ServerOptions, limiter: HandshakeLimiter, is_closing: Callable[[], bool]
) -> Generator[Any, Any, Exception | None]:
    """Answer the request of a connection, following the options and hooks of the application.

    The generator yields the return values of ``process_request`` and ``process_response``. The caller sends back the
    value, or the result of awaiting it; exceptions of awaiting it go to ``throw``.

    Args:
        connection: A server connection.
        options: The options of the server.
        limiter: The handshake limiter of the server, for the log.
        is_closing: Whether the server closes; then requests are refused.

    Returns:
        The reason why the connection was refused, ``None`` if it was accepted.
    """
    handshake: Handshake = connection._handshake
    if not options.has_hooks and not is_closing():
        return answer(connection, options)
    request = handshake.request
    response: Response | None = None
    error: Exception | None = None
    changed = False
    if options.process_request is not None:
        before = list(request.headers.raw_items())
        response, error = yield from _call_hook(
            limiter, "process_request", options.process_request, connection, request
        )
        changed = list(request.headers.raw_items()) != before
    if response is None:
        response, error = _draft(connection, options, limiter, changed)
    _add_server(response, options)
    if options.process_response is not None:
        other, failure = yield from _call_hook(
            limiter, "process_response", options.process_response, connection, request, response
        )
        if other is not None:
            response, error = other, failure
    if response.status_code == 101 and is_closing():
        response = plain_response(503, "Server is shutting down.\n")
        _add_server(response, options)
    try:
        connection._send_answer(handshake.respond(response))
    except InvalidHandshake as exc:
        # The application accepts a request that is not a WebSocket request.
        response = handshake.draft(True, None, common_fields(options.server_header))[0]
        connection._send_answer(handshake.respond(response))
        return exc
    except Exception as exc:
        if connection._state != State.CONNECTING:
            raise
        # The response of the application cannot be sent.
        _log_hook_error(limiter, "the response cannot be sent (%s)", connection, exc)
        refuse(connection)
        return exc
    if response.status_code != 101 and error is None:
        excerpt = response.body_excerpt()
        error = InvalidHandshake(f"HTTP {response.status_code:d}" + (f": {excerpt}" if excerpt else ""))
    return error


def answer(connection: Any, options: ServerOptions) -> Exception | None:
    """Answer the request of a connection without hooks; return the reason if it was refused.

    Args:
        connection: A server connection.
        options: The options of the server.
    """
    error: Exception | None = connection._send_answer(
        connection._handshake.answer(common_fields(options.server_header))
    )
    return error


def refuse(connection: Any) -> None:
    """Answer with status 500. The error itself is in the log.

    Args:
        connection: A server connection.
    """
    connection._send_answer(connection._handshake.respond(plain_response(500, _FAILED)))


def _add_server(response: Response, options: ServerOptions) -> None:
    if options.server_header is not None and "Server" not in response.headers:
        response.headers["Server"] = options.server_header


def _call_hook(
    limiter: HandshakeLimiter, name: str, function: Callable[..., Any], connection: Any, *arguments: Any
) -> Generator[Any, Any, tuple[Response | None, Exception | None]]:
    try:
        response = yield function(connection, *arguments)
        if response is not None and not isinstance(response, Response):
            raise TypeError(f"{name} must return a Response or None, not {type(response).__name__}")
    except Exception as exc:
        _log_hook_error(limiter, f"{name} failed (%s)", connection, exc)
        return plain_response(500, _FAILED), exc
    return response, None


def _draft(
    connection: Any, options: ServerOptions, limiter: HandshakeLimiter, changed: bool
) -> tuple[Response, Exception | None]:
    """Return the default response to a request, whose headers the application may have changed."""
    fields = common_fields(None)
    handshake: Handshake = connection._handshake
    try:
        options.check_origin(handshake.request.headers)
        if changed:
            response, error = _recomputed_draft(connection, options, handshake.request.headers)
        elif options.select_subprotocol is None:
            response, error = handshake.draft(True, None, fields)
        else:
            chosen = options.select_subprotocol(connection, handshake.offered_subprotocols())
            response, error = handshake.draft(False, chosen, fields)
            if isinstance(error, ValueError):
                raise error  # it selected a subprotocol that was not offered
    except InvalidOrigin as exc:
        return plain_response(403, f"Failed to open a WebSocket connection: {exc}.\n"), exc
    except (NegotiationError, InvalidHeader) as exc:
        return plain_response(400, f"Failed to open a WebSocket connection: {exc}.\n"), exc
    except Exception as exc:
        _log_hook_error(limiter, "opening handshake failed (%s)", connection, exc)
        return plain_response(500, _FAILED), exc
    return response, error


def _recomputed_draft(connection: Any, options: ServerOptions, headers: Headers) -> tuple[Response, Exception | None]:
    response, error = connection._handshake.draft(False, None, common_fields(None))
    if error is None:
        offered = offered_subprotocols(headers)
        if options.select_subprotocol is not None:
            chosen = options.select_subprotocol(connection, offered)
        else:
            chosen = next((name for name in options.subprotocols or () if name in offered), None)
        recompute_accept(response, headers, chosen, offered)
    return response, error


def log_hint(data: bytes, is_tls: bool, pending: PendingHandshake, limiter: HandshakeLimiter) -> None:
    """Log that a client speaks plain HTTP instead of TLS, or TLS instead of HTTP: it cannot read a response.

    Args:
        data: The first bytes of the client, which are not a request.
        is_tls: Whether the server expects TLS.
        pending: The handshake.
        limiter: Throttles the log.
    """
    # RFC 8446, section 5.1: a handshake record begins with 22 and the version 3.x.
    if not is_tls and data[:2] == b"\x16\x03":
        text = "a client speaks TLS to a port without TLS (%s): it should connect to ws://, or the server needs ssl="
    elif is_tls and data[:4] in (b"GET ", b"HEAD", b"POST"):
        text = "a client speaks plain HTTP to a port with TLS (%s): it should connect to wss:// or https://"
    else:
        return
    ends = address_text(pending.address)
    with contextlib.suppress(OSError):
        ends += f" -> {address_text(pending.sock.getsockname())}"
    limiter.throttled_log(pending.address, text, logging.WARNING, text, ends)


def log_refusal(connection: Any, error: Exception, limiter: HandshakeLimiter) -> None:
    """Log that a connection was refused.

    Args:
        connection: A server connection.
        error: The reason.
        limiter: Throttles the log.
    """
    text = "connection %s refused: %s"
    limiter.throttled_log(connection.remote_address, f"refused: {error}", logging.INFO, text, connection._label, error)


def log_handshake_error(
    pending: PendingHandshake, connection: Any | None, exc: Exception, limiter: HandshakeLimiter, logger: LoggerLike
) -> None:
    """Log that an opening handshake has failed.

    Args:
        pending: The handshake.
        connection: The connection, if it exists already.
        exc: The error.
        limiter: Throttles the log of errors that clients cause.
        logger: Logger for all other errors.
    """
    label = address_text(pending.address) if connection is None else connection._label
    text = "opening handshake failed (%s): %s"
    reason = str(exc) or type(exc).__name__
    if not is_peer_error(exc):
        _log_local_error(limiter, logger, pending.address, exc, text, label, reason)
    elif pending.is_silent:
        # A port scan or a health check.
        logger.debug("a client has sent nothing (%s): %s", label, reason)
    else:
        # The key is the type only: the message may quote bytes that differ each time.
        limiter.throttled_log(pending.address, f"failed: {type(exc).__name__}", logging.INFO, text, label, reason)


def _log_hook_error(limiter: HandshakeLimiter, text: str, connection: Any, exc: Exception) -> None:
    """Log an exception of the application before the connection is open."""
    _log_local_error(limiter, connection.logger, connection.remote_address, exc, text, connection._label)


def _log_local_error(
    limiter: HandshakeLimiter, logger: LoggerLike, address: Any, exc: Exception, text: str, *arguments: Any
) -> None:
    """Log an error of this process with its traceback, at most once for each cause, because clients can repeat it.

    The cause is the set of source lines in the traceback, so different bugs are logged separately. As a set, it does
    not grow when a client controls the depth of a recursion.
    """
    lines = {f"{frame.f_code.co_filename}:{number}" for frame, number in traceback.walk_tb(exc.__traceback__)}
    cause = " ".join([text, type(exc).__name__, *sorted(lines)])
    if limiter.throttled_log_start(address, cause, logging.ERROR, text, *arguments):
        logger.error(text, *arguments, exc_info=exc)


def is_peer_error(exc: Exception) -> bool:
    """Return whether an exception in the opening handshake was caused by the peer or the network.

    Args:
        exc: The exception.
    """
    return isinstance(exc, (ConnectionClosed, InvalidHandshake, OSError, EOFError))
