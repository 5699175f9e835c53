"""Conversion between ASGI events and WebSocket data: scope, headers, close codes. All functions are pure.

See https://asgi.readthedocs.io/en/latest/specs/www.html#websocket, version 2.4.
"""

from __future__ import annotations

import http
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from ..close_codes import CloseCode
from ..datastructures import Headers, Request, Response
from ..exceptions import ConnectionClosed

__all__ = [
    "Fields",
    "acceptance",
    "add_default_headers",
    "closing_of",
    "denial",
    "denial_headers",
    "disconnect",
    "payload",
    "receive",
    "scope",
]

Fields = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI represents them."""

# Headers that the opening handshake sets, or that a response with status 101 must not have (RFC 9110, sections 6.4.1
# and 8.6). In a denial, the core sets those about the body, because it is sent as a whole.
_OWN_FIELDS = frozenset(
    [
        "connection",
        "content-length",
        "sec-websocket-accept",
        "sec-websocket-extensions",
        "transfer-encoding",
        "upgrade",
    ]
)


def scope(request: Request, root_path: str, headers: Fields | None) -> dict[str, Any]:
    """Return the part of a connection's scope that depends on its request.

    Args:
        request: The request.
        root_path: Path where the application is mounted.
        headers: All headers, if ``request`` contains only some of them; otherwise ``None``.
    """
    raw_path, _, query = _path(request.path).partition("?")
    fields = request.headers
    if headers is None:
        headers = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in fields.raw_items()]
    return {
        "type": "websocket",
        "http_version": "1.1",
        "root_path": root_path,
        "path": root_path + unquote(raw_path),
        "raw_path": root_path.encode("ascii") + raw_path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "subprotocols": [
            token.strip() for value in fields.get_all("Sec-WebSocket-Protocol") for token in value.split(",")
        ],
        "extensions": {"websocket.http.response": {}},
    }


def _path(target: str) -> str:
    """Return path and query of a request target, also in absolute form (RFC 9112, section 3.2.2)."""
    if target.startswith("/"):
        return target
    return "/" + target.partition("://")[2].partition("/")[2]


def acceptance(draft: Response, message: dict[str, Any], defaults: Fields) -> Response:
    """Return the response that accepts a connection.

    Args:
        draft: The response without the headers of the application.
        message: The event ``websocket.accept``.
        defaults: Headers of every response of the server.

    Raises:
        InvalidHeaderFormat: The name of a header is not a token.
        InvalidHeaderValue: A header contains a line break or another forbidden character.
    """
    headers = draft.headers.copy()
    subprotocol = message.get("subprotocol")
    for name, value in (*defaults, *message.get("headers", ())):
        key = name.decode("latin-1").lower()
        if key not in _OWN_FIELDS and not (subprotocol and key == "sec-websocket-protocol"):
            headers[key] = value.decode("latin-1")
    if subprotocol:
        # As in uvicorn, it need not be one that the client has offered.
        headers["Sec-WebSocket-Protocol"] = subprotocol
    return Response(draft.status_code, draft.reason_phrase, headers)


def denial_headers(fields: Fields, defaults: Fields) -> Headers:
    """Return the headers of a response that refuses a connection.

    Args:
        fields: Headers of the application.
        defaults: Headers of every response of the server.

    Raises:
        InvalidHeaderFormat: The name of a header is not a token.
        InvalidHeaderValue: A header contains a line break or another forbidden character.
    """
    headers = Headers()
    for name, value in fields:
        key = name.decode("latin-1")
        if key.lower() not in _OWN_FIELDS:
            headers[key] = value.decode("latin-1")
    if "Content-Type" not in headers:
        headers["Content-Type"] = "text/plain; charset=utf-8"
    add_default_headers(headers, defaults)
    return headers


def add_default_headers(headers: Headers, defaults: Fields) -> None:
    """Add the headers of every response, unless they are set already.

    Args:
        headers: Headers of a response.
        defaults: Headers of every response of the server.
    """
    for name, value in defaults:
        key = name.decode("latin-1")
        if key not in headers and key.lower() not in _OWN_FIELDS:
            headers[key] = value.decode("latin-1")


def denial(status: int, headers: Headers, body: bytes) -> Response:
    """Return a response that refuses a connection.

    Args:
        status: Status code.
        headers: Headers.
        body: Body.
    """
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return Response(status, phrase, headers, body)


def payload(data: object) -> memoryview:
    """Return a view of the ``bytes`` of a ``websocket.send`` event.

    Args:
        data: Any value that is not ``bytes``.

    Raises:
        TypeError: It is not bytes-like.
    """
    try:
        return memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"'bytes' of websocket.send must be bytes-like, not {type(data).__name__}") from None


def closing_of(error: ConnectionClosed) -> tuple[int, str]:
    """Return code and reason of the first close frame, whichever end sent it.

    Args:
        error: How the connection ended. Without a close frame, the code is 1006 (RFC 6455, section 7.1.5).
    """
    close = error.rcvd if error.sent is None or error.rcvd_then_sent else error.sent
    return (CloseCode.ABNORMAL_CLOSURE, "") if close is None else (close.code, close.reason)


def receive(message: str | bytes) -> dict[str, Any]:
    """Return the event ``websocket.receive``.

    Args:
        message: The message of the client.
    """
    return {"type": "websocket.receive", "text" if type(message) is str else "bytes": message}


def disconnect(code: int, reason: str) -> dict[str, Any]:
    """Return the event ``websocket.disconnect``.

    Args:
        code: Close code.
        reason: Close reason.
    """
    return {"type": "websocket.disconnect", "code": int(code), "reason": reason}
