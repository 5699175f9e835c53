"""Redirects of the opening handshake: which ones to follow, and which headers to drop.

Clients use one ``RedirectChain`` for each attempt to connect. It opens no connection.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .._redaction import mask_uri, printable
from ..datastructures import Headers, HeadersLike, Response
from ..exceptions import InvalidStatus, InvalidURI, SecurityError
from .uri import WebSocketURI, parse_uri, split

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MAX_REDIRECTS", "RedirectChain", "cross_origin_headers", "redirect_location", "resolve_location"]

MAX_REDIRECTS = 10
"""Maximum number of redirects that a client follows, as in websockets."""

# RFC 9110, section 15.4. 304, 305 and 306 have no target to follow.
_STATUSES = frozenset({300, 301, 302, 303, 307, 308})

# Servers may redirect to an http or https URI, because the handshake is an HTTP request.
_SCHEMES = {"http": "ws", "https": "wss"}

# Headers with credentials, or with the name of the origin: they must not be sent to another origin.
_ORIGIN_HEADERS = frozenset({"authorization", "cookie", "host", "proxy-authorization"})


class RedirectChain:
    """The URIs that one attempt to connect visits.

    Args:
        uri: The first URI.
        headers: The headers that the caller adds to the request.
        sock: Whether the caller supplied the socket.
        unix: Whether the connection goes to a Unix socket.
        address: Whether the caller supplied a host or port that differs from the URI.
        max_redirects: Maximum number of redirects to follow.

    Attributes:
        uri: The current URI.
        parsed: Its parts.
        headers: The headers to add to the request at the current URI, ``None`` if the caller gave none.

    Raises:
        InvalidURI: ``uri`` is not a WebSocket URI.
    """

    def __init__(
        self,
        uri: str,
        headers: HeadersLike | None = None,
        *,
        sock: bool = False,
        unix: bool = False,
        address: bool = False,
        max_redirects: int = MAX_REDIRECTS,
    ) -> None:
        self.uri = uri
        self.parsed = parse_uri(uri)
        self.headers = None if headers is None else Headers(headers)
        self._first = self.parsed
        self._sock = sock
        self._unix = unix
        self._address = address
        self._max_redirects = max_redirects
        self._followed = 0

    @property
    def masked_uri(self) -> str:
        """The URI for logs: without credentials and query."""
        return printable(mask_uri(self.uri))

    def server_hostname(self, named: str | None) -> str | None:
        """Return the name that the certificate at the current URI must have, ``None`` for the host of the URI.

        Args:
            named: The argument of the caller, ``None`` without one.
        """
        # The argument names the host of the first URI. Another host must not be accepted with that name.
        if named is None or self.parsed is self._first or self.parsed.origin[1] == self._first.origin[1]:
            return named
        return None

    def copy(self) -> Self:
        """Return an independent chain with the same state."""
        chain = type(self).__new__(type(self))
        vars(chain).update(vars(self))
        return chain

    def follow(self, exc: InvalidStatus) -> None:
        """Move on to the target of a redirect.

        Args:
            exc: The rejection, raised again if it is not a redirect.

        Raises:
            InvalidStatus: The response is not a redirect.
            InvalidURI: The target is not a WebSocket URI.
            SecurityError: It leads from wss to ws, or there are too many redirects.
            ValueError: It cannot be followed with the socket or the address that the caller supplied.
        """
        location = redirect_location(exc.response)
        if location is None:
            raise exc
        uri = resolve_location(self.uri, location)
        parsed = parse_uri(uri)
        self._check(parsed, printable(mask_uri(uri)), exc)
        if parsed.origin != self.parsed.origin and self.headers is not None:
            self.headers = cross_origin_headers(self.headers)
        self.uri = uri
        self.parsed = parsed
        self._followed += 1

    def _check(self, new: WebSocketURI, shown: str, exc: InvalidStatus) -> None:
        if self._followed >= self._max_redirects:
            raise SecurityError(f"more than {self._max_redirects} redirects") from exc
        if self.parsed.secure and not new.secure:
            raise SecurityError(f"cannot follow redirect to non-secure URI {shown}") from exc
        # The server closes a connection that it redirects, so the socket of the caller cannot be used again.
        if self._sock:
            raise ValueError(f"cannot follow redirect to {shown} with a preexisting socket") from exc
        if new.origin != self.parsed.origin:
            if self._unix:
                raise ValueError(f"cannot follow cross-origin redirect to {shown} with a Unix socket") from exc
            if self._address:
                raise ValueError(
                    f"cannot follow cross-origin redirect to {shown} with an explicit host or port"
                ) from exc


def redirect_location(response: Response) -> str | None:
    """Return the target of a redirect, ``None`` if the response is not a redirect.

    Args:
        response: A response to the opening handshake.
    """
    locations = response.headers.get_all("Location")
    if response.status_code not in _STATUSES or len(locations) != 1 or not locations[0]:
        return None
    return locations[0]


def resolve_location(uri: str, location: str) -> str:
    """Resolve a Location header against the URI of the request.

    Args:
        uri: The URI of the request, valid.
        location: Value of the header: absolute or relative, with a WebSocket or an HTTP scheme.

    Returns:
        The URI to request next. It keeps the user information of ``uri`` only for the same origin, where the location
        may also replace it.

    Raises:
        InvalidURI: The location is not a WebSocket URI.
    """
    # Servers encode other characters than ASCII as UTF-8; headers are decoded as ISO-8859-1.
    with contextlib.suppress(UnicodeError):
        location = location.encode("iso-8859-1").decode()
    # RFC 9110, section 10.2.2, allows a fragment; RFC 6455, section 3, does not.
    from urllib.parse import urljoin

    location = location.partition("#")[0]
    try:
        scheme, authority, *_ = split(location)
        if scheme:
            new = _SCHEMES.get(scheme, scheme) + location[len(scheme) :]
        elif authority is not None:
            new = f"{split(uri)[0]}:{location}"
        else:
            new = urljoin(uri, location)
    except ValueError as exc:
        raise InvalidURI(location, str(exc)) from None
    return _with_user_info(new, uri)


def cross_origin_headers(headers: Headers) -> Headers:
    """Return a copy of headers without those that must not be sent to another origin.

    Args:
        headers: The headers.
    """
    return Headers.from_raw(item for item in headers.raw_items() if item[0].lower() not in _ORIGIN_HEADERS)


def _with_user_info(new: str, old: str) -> str:
    _, at, location = _authority(new).rpartition("@")
    if parse_uri(new).origin != parse_uri(old).origin:
        authority = location
    elif not at:
        authority = "".join(_authority(old).rpartition("@")[:2]) + location
    else:
        return new
    scheme, _, rest = new.partition("://")
    return f"{scheme}://{authority}{rest[len(_authority(new)) :]}"


def _authority(uri: str) -> str:
    return split(uri)[1] or ""
