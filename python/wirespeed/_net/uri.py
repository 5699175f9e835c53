"""WebSocket URIs (RFC 6455, section 3) with the grammar of RFC 3986.

It has its own parser, because ``urllib.parse`` drops characters silently and differs between Python versions. The
results are safe to write into a request line or a header. The parser of proxy URLs shares its functions.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from ..exceptions import InvalidURI

__all__ = ["WebSocketURI", "authority_of", "parse_uri"]


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
