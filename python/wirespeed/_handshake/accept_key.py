"""Corrects the response to a request whose headers the application has changed.

The native core answers the original request. This module recomputes the parts that depend on headers: the accept key,
the subprotocol and the extensions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from ..datastructures import Headers, Response
from ..exceptions import InvalidHeader, InvalidHeaderFormat, InvalidHeaderValue

__all__ = ["recompute_accept", "offered_subprotocols"]

# RFC 6455, section 1.3.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def offered_subprotocols(headers: Headers) -> list[str]:
    """Return the subprotocols that a request offers, in order of preference.

    Args:
        headers: Headers of the request.

    Raises:
        InvalidHeaderFormat: The header is not a list of tokens (RFC 6455, section 4.2.1).
    """
    name = "Sec-WebSocket-Protocol"
    tokens = [token.strip(" \t") for value in headers.get_all(name) for token in value.split(",")]
    for token in tokens:
        if not _TOKEN.issuperset(token):
            raise InvalidHeaderFormat(name, "expected a list of tokens", token, 0)
    return [token for token in tokens if token]


def recompute_accept(response: Response, headers: Headers, subprotocol: str | None, offered: Sequence[str]) -> None:
    """Correct an accepting response for changed request headers.

    Args:
        response: Response to the original request, without a subprotocol.
        headers: Current headers of the request.
        subprotocol: The selected subprotocol.
        offered: Subprotocols that the current headers offer.

    Raises:
        InvalidHeader: The key is missing or invalid.
        ValueError: The subprotocol is not offered.
    """
    if subprotocol is not None:
        if subprotocol not in offered:
            raise ValueError(f"subprotocol must be one that the client offers, not {subprotocol!r}")
        response.headers["Sec-WebSocket-Protocol"] = subprotocol
    del response.headers["Sec-WebSocket-Accept"]
    response.headers["Sec-WebSocket-Accept"] = _accept(headers)
    # RFC 6455, section 9.1: the server must not accept extensions that were not offered.
    offers = [value.partition(";")[0].strip() for line in headers.get_all(_EXTENSIONS) for value in line.split(",")]
    if _EXTENSIONS in response.headers and "permessage-deflate" not in offers:
        del response.headers[_EXTENSIONS]


_EXTENSIONS = "Sec-WebSocket-Extensions"


def _accept(headers: Headers) -> str:
    name = "Sec-WebSocket-Key"
    keys = headers.get_all(name)
    if len(keys) != 1:
        raise InvalidHeader(name, "more than one value" if keys else None)
    try:
        is_key = len(base64.b64decode(keys[0].encode(), validate=True)) == 16
    except binascii.Error:
        is_key = False
    if not is_key:
        raise InvalidHeaderValue(name, keys[0])
    import hashlib

    # RFC 6455, section 4.2.2, requires SHA-1.
    return base64.b64encode(hashlib.sha1(keys[0].encode() + _GUID, usedforsecurity=False).digest()).decode()
