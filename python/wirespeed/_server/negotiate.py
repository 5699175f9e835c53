"""The opening handshake of a server: receives the request and decides the response, with the application's hooks.

It does no I/O. The caller of :func:`reception` moves the bytes over the socket. The caller of :func:`negotiation`
receives the results of hooks, and awaits them on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from .._connection import State
from .._native import Handshake, Opened, ServerTLS, accept_key
from .._options.server import ServerOptions
from ..datastructures import Headers, Response
from ..exceptions import (
    InvalidHandshake,
    InvalidHeader,
    InvalidHeaderFormat,
    InvalidHeaderValue,
    InvalidOrigin,
    NegotiationError,
)
from .accept import AcceptedSocket, HandshakeLimiterBase
from .log import ThrottledLog, log_hint, log_hook_error
from .responses import common_fields, plain_response

__all__ = ["LINGER_TIMEOUT", "Refusal", "answer", "negotiation", "reception", "refuse"]

LINGER_TIMEOUT = 2.0
"""Seconds that a refused client has to read the response, if no other timeout applies."""

_FAILED = "Failed to open a WebSocket connection.\nSee server log for more information.\n"


def negotiation(
    connection: Any, options: ServerOptions, limiter: ThrottledLog, is_closing: Callable[[], bool]
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
        log_hook_error(limiter, "the response cannot be sent (%s)", connection, exc)
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
    limiter: ThrottledLog, name: str, function: Callable[..., Any], connection: Any, *arguments: Any
) -> Generator[Any, Any, tuple[Response | None, Exception | None]]:
    try:
        response = yield function(connection, *arguments)
        if response is not None and not isinstance(response, Response):
            raise TypeError(f"{name} must return a Response or None, not {type(response).__name__}")
    except Exception as exc:
        log_hook_error(limiter, f"{name} failed (%s)", connection, exc)
        return plain_response(500, _FAILED), exc
    return response, None


def _draft(
    connection: Any, options: ServerOptions, limiter: ThrottledLog, changed: bool
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
        log_hook_error(limiter, "opening handshake failed (%s)", connection, exc)
        return plain_response(500, _FAILED), exc
    return response, error


def _recomputed_draft(connection: Any, options: ServerOptions, headers: Headers) -> tuple[Response, Exception | None]:
    """Correct the default response, which answers the original request, for changed request headers."""
    response, error = connection._handshake.draft(False, None, common_fields(None))
    if error is None:
        offered = _offered_subprotocols(headers)
        if options.select_subprotocol is not None:
            chosen = options.select_subprotocol(connection, offered)
        else:
            chosen = next((name for name in options.subprotocols or () if name in offered), None)
        _recompute_accept(response, headers, chosen, offered)
    return response, error


_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _offered_subprotocols(headers: Headers) -> list[str]:
    name = "Sec-WebSocket-Protocol"
    tokens = [token.strip(" \t") for value in headers.get_all(name) for token in value.split(",")]
    for token in tokens:
        if not _TOKEN.issuperset(token):
            # RFC 6455, section 4.2.1.
            raise InvalidHeaderFormat(name, "expected a list of tokens", token, 0)
    return [token for token in tokens if token]


def _recompute_accept(response: Response, headers: Headers, subprotocol: str | None, offered: Sequence[str]) -> None:
    if subprotocol is not None:
        if subprotocol not in offered:
            raise ValueError(f"subprotocol must be one that the client offers, not {subprotocol!r}")
        response.headers["Sec-WebSocket-Protocol"] = subprotocol
    name = "Sec-WebSocket-Key"
    keys = headers.get_all(name)
    if len(keys) != 1:
        raise InvalidHeader(name, "more than one value" if keys else None)
    accepted = accept_key(keys[0])
    if accepted is None:
        raise InvalidHeaderValue(name, keys[0])
    del response.headers["Sec-WebSocket-Accept"]
    response.headers["Sec-WebSocket-Accept"] = accepted
    # RFC 6455, section 9.1: the server must not accept extensions that were not offered.
    name = "Sec-WebSocket-Extensions"
    offers = [value.partition(";")[0].strip() for line in headers.get_all(name) for value in line.split(",")]
    if name in response.headers and "permessage-deflate" not in offers:
        del response.headers[name]


class Refusal(bytes):
    """The last bytes sent to a client, which needs time to read them.

    Closing the socket with unread input would reset the connection, and the client might not see them.
    """

    __slots__ = ()


def reception(
    accepted: AcceptedSocket, tls: ServerTLS | Any | None, options: ServerOptions, limiter: HandshakeLimiterBase
) -> Generator[bytes | None, bytes | None, Opened]:
    """Perform the TLS handshake, if there is TLS, and receive the request.

    The generator yields bytes to send, or ``None`` to receive bytes, which the caller passes to ``send``; empty bytes
    mean the end of the stream.

    Args:
        accepted: An accepted socket, and the state of its handshake.
        tls: Native TLS settings or an ``ssl.SSLContext``, ``None`` for no TLS.
        options: The options of the server.
        limiter: Notified of progress.

    Returns:
        The argument of a connection's constructor. The connection answers the request.

    Raises:
        InvalidHandshake: The input is not an HTTP request. A response has been sent.
        ssl.SSLError: TLS failed.
    """
    handshake = accepted.handshake
    if tls is not None:
        handshake.start_tls(tls)
    while True:
        try:
            handshake.check()
        except BaseException:
            log_hint(handshake.prefix, tls is not None, accepted, limiter)
            handshake.reject(common_fields(options.server_header))
            if output := handshake.take_output():
                yield Refusal(output)
            raise
        if output := handshake.take_output():
            yield output
        if handshake.is_complete:
            return handshake.finish()
        data = yield None
        handshake.receive(data or b"")
        if data and accepted.key is not None:
            limiter.progress(accepted.key)
