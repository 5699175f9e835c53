"""WebSocket URIs (RFC 6455, section 3) with the grammar of RFC 3986, and redirects from one to another.

It has its own parser, because ``urllib.parse`` drops characters silently and differs between Python versions. The
results are safe to write into a request line or a header. The parser of proxy URLs shares its functions.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, NamedTuple

from .._redaction import mask_uri, printable
from ..datastructures import Headers, HeadersLike, Response
from ..exceptions import InvalidStatus, InvalidURI, SecurityError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "MAX_REDIRECTS",
    "RedirectChain",
    "WebSocketURI",
    "authority_of",
    "cross_origin_headers",
    "parse_uri",
    "redirect_location",
    "resolve_location",
]


class WebSocketURI(NamedTuple):
    """A valid WebSocket URI.

    Attributes:
        secure: Whether the scheme is wss.
        host: Host in lower case; an IPv6 address has no brackets, and keeps its zone.
        port: Port, set even if it is the default.
        path: Path, may be empty.
        query: Query, without ``?``, may be empty.
        username: User name, decoded, ``None`` without one.
        password: Password, decoded, ``None`` without one.
    """

    secure: bool
    host: str
    port: int
    path: str
    query: str
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        # Without user name, password and query, because it may be logged.
        shown = zip(self._fields[:5], (*self[:4], self.query and "***"), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"

    @property
    def resource_name(self) -> str:
        """Path and query for the request line."""
        # RFC 6455, section 3: an empty path becomes "/"; "?" is written before a non-empty query.
        return (self.path or "/") + (f"?{self.query}" if self.query else "")

    @property
    def user_info(self) -> tuple[str, str] | None:
        """User name and password, ``None`` without them."""
        return None if self.username is None else (self.username, self.password or "")

    @property
    def host_header(self) -> str:
        """Value of the Host header, without the default port."""
        if self.port == (443 if self.secure else 80):
            return _bracketed(self.host)
        return self.authority

    @property
    def authority(self) -> str:
        """Host and port, even the default port, as in a CONNECT request."""
        return authority_of(self.host, self.port)

    @property
    def origin(self) -> tuple[bool, str, int]:
        """Scheme, host and port: URIs of the same server have the same origin."""
        return self.secure, self.host.rstrip("."), self.port


def parse_uri(uri: str) -> WebSocketURI:
    """Parse and validate a WebSocket URI.

    A non-ASCII host is encoded with IDNA. Other characters outside the grammar are percent-encoded, except for spaces
    and control characters, which are refused.

    Args:
        uri: The URI.

    Returns:
        The parts of the URI.

    Raises:
        InvalidURI: ``uri`` is not a WebSocket URI.
    """
    if not isinstance(uri, str):
        raise TypeError(f"uri must be a str, not {type(uri).__name__}")
    # Most programs connect to few URIs. User information and queries may contain secrets, so they are not cached.
    return _parse(uri) if "@" in uri or "?" in uri else _parse_once(uri)


def _parse(uri: str) -> WebSocketURI:
    try:
        scheme, authority, path, query, fragment = split(uri)
        _check_scheme(scheme, uri)
        # RFC 6455, section 3: "Fragment identifiers are meaningless in the context of WebSocket URIs and MUST
        # NOT be used on these URIs."
        if fragment is not None:
            raise ValueError("it has a fragment; remove it, or write # as %23")
        host, port, username, password = split_authority(authority)
        # RFC 3986, section 3.2.1. Programs disagree about which @ ends the user information, and so about the host.
        if authority is not None and authority.count("@") > 1:
            raise ValueError("its username or password contains @; write it as %40")
        if username is not None:
            if password is None:
                raise ValueError("username provided without password; write user:@ for an empty password")
            # RFC 7617, section 2: a colon separates user name and password.
            if ":" in username:
                raise ValueError("username contains a colon")
        secure = scheme == "wss"
        if port is None:
            port = 443 if secure else 80
        return WebSocketURI(secure, host, port, _encode(path), _encode(query or ""), username, password)
    except ValueError as exc:
        raise InvalidURI(uri, str(exc)) from None


_parse_once = functools.lru_cache(maxsize=32)(_parse)


# RFC 3986, appendix B. Each part ends where the next one may begin, so the match never backtracks.
_PARTS = re.compile(r"(?:([^:/?#]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")


def split(uri: str) -> tuple[str, str | None, str, str | None, str | None]:
    """Split a URI into scheme, authority, path, query and fragment.

    Args:
        uri: The URI.

    Returns:
        The parts, with the scheme in lower case; ``None`` for absent parts, except for scheme and path, which are
        empty.

    Raises:
        ValueError: The text contains a space, a control character, or half of a surrogate pair.
    """
    # These end a request line or a header, or make two programs read different URIs.
    if found := _FORBIDDEN.search(uri):
        char = "a space" if found[0] == " " else "a control character"
        raise ValueError(f"it contains {char} at position {found.start()}; percent-encode it")
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair") from None
    match = _PARTS.fullmatch(uri)
    if match is None:  # cannot happen: every part of the pattern may be empty
        raise ValueError("it cannot be parsed")
    scheme, authority, path, query, fragment = match.groups()
    return (scheme or "").lower(), authority, path, query, fragment


def split_authority(authority: str | None) -> tuple[str, int | None, str | None, str | None]:
    """Split and decode an authority.

    Args:
        authority: The text between ``//`` and the path, ``None`` without ``//``.

    Returns:
        Host, port, user name and password; ``None`` for absent parts.

    Raises:
        ValueError: The authority is malformed. The message does not quote it, because it may contain a password.
    """
    user_info, at, location = (authority or "").rpartition("@")
    if location.startswith("["):
        address, bracket, rest = location[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("the brackets around its IPv6 address are not balanced")
        host, port = _ipv6(address), rest[1:]
    else:
        name, _, port = location.partition(":")
        if ":" in port:
            raise ValueError("its host has too many colons; put an IPv6 address in brackets")
        host = _name(name)
    if not at:
        return host, _port(port), None, None
    username, colon, password = user_info.partition(":")
    return host, _port(port), _decode(username), _decode(password) if colon else None


def _check_scheme(scheme: str, uri: str) -> None:
    if scheme in ("ws", "wss"):
        return
    if scheme in ("http", "https"):
        raise ValueError(
            f"scheme isn't ws or wss; use {'wss' if scheme == 'https' else 'ws'}:// instead of {scheme}://"
        )
    if not scheme or "//" not in uri:
        raise ValueError("scheme isn't ws or wss; begin it with ws:// or wss://")
    raise ValueError("scheme isn't ws or wss")


def _ipv6(address: str) -> str:
    from ipaddress import IPv6Address

    # RFC 6874 writes the zone after "%25"; users often write it after "%", as systems print it.
    address, percent, zone = address.partition("%")
    zone = zone[2:] if zone.startswith("25") and len(zone) > 2 else zone
    try:
        IPv6Address(address)
    except ValueError:
        raise ValueError("its host isn't an IPv6 address, although it is in brackets") from None
    if percent and not re.fullmatch(r"[A-Za-z0-9._~-]+", zone):
        raise ValueError("the zone of its IPv6 address is malformed")
    return address.lower() + (f"%{zone}" if percent else "")


# RFC 3986, section 3.2.2: a decoded reg-name.
_is_name = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=-]+").fullmatch


def _name(name: str) -> str:
    if "%" in name:
        from urllib.parse import unquote

        try:
            name = unquote(name, errors="strict")
        except UnicodeDecodeError:
            raise ValueError("its host isn't UTF-8 once it is decoded") from None
    if not name:
        raise ValueError("hostname isn't provided")
    if not name.isascii():
        try:
            name = name.encode("idna").decode()
        except UnicodeError as exc:
            raise ValueError(f"its host cannot be encoded by IDNA: {exc.__cause__ or exc}") from None
    if not _is_name(name):
        raise ValueError("its host contains a forbidden character")
    # RFC 1035, section 2.3.4. A resolver would refuse it too, but with an encoding error.
    if len(name) > 63 and (len(name) > 254 or any(len(label) > 63 for label in name.split("."))):
        raise ValueError("its host, or a label of it, is too long")
    if name.startswith(".") or ".." in name:
        raise ValueError("its host has an empty label")
    return name.lower()


_is_port = re.compile(r"[0-9]{1,5}").fullmatch


def _port(port: str) -> int | None:
    # RFC 3986, section 3.2.3: an empty port means the default port.
    if not port:
        return None
    if _is_port(port) and 1 <= int(port) <= 65535:
        return int(port)
    raise ValueError("its port isn't a number from 1 to 65535; a : or @ in a password must be percent-encoded")


def _decode(text: str) -> str:
    from urllib.parse import unquote

    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("its username or password isn't UTF-8 once it is decoded") from None
    # RFC 7617, section 2: "The user-id and password MUST NOT contain any control characters".
    if re.search(r"[\x00-\x1f\x7f]", decoded):
        raise ValueError("its username or password contains a control character")
    return decoded


# The characters that RFC 3986 allows in a path or a query, and "%", which begins encoded characters.
_ALLOWED = "%:/?[]@!$&'()*+,;=-._~"
_needs_no_encoding = re.compile(rf"[A-Za-z0-9{re.escape(_ALLOWED)}]*").fullmatch


def _encode(text: str) -> str:
    if _needs_no_encoding(text):
        return text
    from urllib.parse import quote

    return quote(text, safe=_ALLOWED)


def authority_of(host: str, port: int) -> str:
    """Return host and port, even the default port, as in a CONNECT request.

    Args:
        host: Host name or address. An IPv6 address has no brackets; its zone is dropped.
        port: Port.

    Raises:
        UnicodeError: The host cannot be encoded with IDNA.
    """
    return f"{_bracketed(host if host.isascii() else host.encode('idna').decode())}:{port}"


def _bracketed(host: str) -> str:
    # RFC 6874, section 1: the zone has no meaning for the other end, so it is not sent.
    return f"[{host.partition('%')[0]}]" if ":" in host else host


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
