"""Requests, responses and exceptions for applications, which may use the classes of either package.

Requests and responses are instances of the classes of both packages. Exceptions have the data and texts of websockets.
"""

from __future__ import annotations

import ssl
from typing import Any

from ... import datastructures, exceptions
from ..._net.uri import WebSocketURI, parse_uri
from . import datastructures as their_datastructures
from . import http11, uri
from ._installed import real

__all__ = ["Request", "Response", "adapt", "request", "response", "websocket_uri"]

_ADVICE = {
    "pass its certificate as ca=": "pass an ssl.SSLContext that trusts it as ssl=",
    "or pass ca=": "or pass an ssl.SSLContext as ssl=",
    "pass cert= and key=": "pass an ssl.SSLContext with one as ssl=",
}

Request: Any = datastructures.Request
Response: Any = datastructures.Response

if real is not None:
    # The classes of this package come first: the fields are the same, and their repr masks credentials.
    Request = type("Request", (datastructures.Request, http11.Request), {"__doc__": datastructures.Request.__doc__})
    Response = type(
        "Response", (datastructures.Response, http11.Response), {"__doc__": datastructures.Response.__doc__}
    )


def _headers(headers: Any) -> Any:
    kind = their_datastructures.Headers
    return headers if isinstance(headers, kind) else kind(list(headers.raw_items()))


def request(head: Any) -> Any:
    """Return a request with the classes of both packages.

    Args:
        head: A request of either package.
    """
    if isinstance(head, Request) and type(head.headers) is their_datastructures.Headers:
        return head
    return Request(head.path, _headers(head.headers), head.method, head.protocol)


def response(head: Any) -> Any:
    """Return a response with the classes of both packages.

    Args:
        head: A response of either package.
    """
    if isinstance(head, Response) and type(head.headers) is their_datastructures.Headers:
        return head
    return Response(head.status_code, head.reason_phrase, _headers(head.headers), head.body)


def adapt(exc: BaseException) -> None:
    """Adapt an exception to websockets: its response, its cause, and the arguments that its text suggests.

    Args:
        exc: The exception.
    """
    if isinstance(exc, (exceptions.InvalidStatus, exceptions.InvalidProxyStatus)):
        exc.response = response(exc.response)
        exc.args = (exc.response,)
    elif isinstance(exc, (exceptions.InvalidMessage, exceptions.InvalidProxyMessage)) and (
        # EOFError stays: no response was received.
        exc.__cause__ is None or isinstance(exc.__cause__, exceptions.WebSocketException)
    ):
        exc.__cause__ = ValueError(str(exc.__cause__ or exc))
    elif isinstance(exc, ssl.SSLError) and isinstance(exc.strerror, str):
        # The text suggests arguments of wirespeed.TLS, which connect of websockets does not have.
        for advice, ours in _ADVICE.items():
            exc.strerror = exc.strerror.replace(advice, ours)
        exc.args = (exc.args[0], exc.strerror, *exc.args[2:])


def websocket_uri(text: str) -> Any:
    """Return the parts of a URI, as an object of websockets.

    Args:
        text: The URI.

    Raises:
        InvalidURI: It is not a WebSocket URI.
    """
    ours: WebSocketURI = parse_uri(text)
    return uri.WebSocketURI(ours.secure, ours.host, ours.port, ours.path, ours.query, ours.username, ours.password)
