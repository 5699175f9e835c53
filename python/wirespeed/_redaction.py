"""Removes credentials, and characters that could forge log lines, from texts shown to people.

It knows the syntax of URIs and HTTP headers, and no types of this package. Exceptions and the ``repr`` of the data
structures call it while an error is reported, so its functions accept any text, however malformed.
"""

from __future__ import annotations

import re

__all__ = ["mask_header", "mask_query", "mask_uri", "mask_user_info", "printable"]

# Applications choose names for headers with credentials, such as X-Api-Key, that usually contain one of these words.
_SENSITIVE = re.compile("auth|cookie|key|password|secret|session|token")

# The only header that scripts in browsers can set, so applications use it for tokens.
_SUBPROTOCOLS = "sec-websocket-protocol"

# Headers that match the pattern, but contain no secret: a random number, and how to authenticate.
_HARMLESS = frozenset({"sec-websocket-key", "www-authenticate", "proxy-authenticate"})

# Headers whose values are URIs.
_REFERENCES = frozenset({"location", "content-location", "referer"})

_MASK = "***"

# Long enough for URIs and headers in error messages, short enough for a log line.
_LIMIT = 500

_PREFIX = re.compile(r"[^/?#]*?//")


def mask_user_info(uri: str) -> str:
    """Replace the user information of a URI, valid or not, by ``***``.

    A URI is often invalid because its password contains ``/``, ``?``, ``#`` or ``@``. So everything up to the last
    ``@`` is masked if it may belong to a password, even if that masks a part of the path.

    Args:
        uri: Any text.

    Returns:
        The text without user name and password.
    """
    start = prefix.end() if (prefix := _PREFIX.match(uri)) else 0
    end = uri.rfind("@")
    if end < start:
        return uri
    authority = re.split(r"[/?#]", uri[start:], maxsplit=1)[0]
    # Host and port can look like a user name and the beginning of a password. Colons of IPv6 addresses do not count.
    if "@" in authority or ":" in authority.rpartition("]")[2]:
        return uri[:start] + _MASK + uri[end:]
    return uri


def mask_query(target: str) -> str:
    """Replace the query of a path or a URI, which may contain tokens, by ``***``.

    Args:
        target: Any text.
    """
    path, mark, query = target.partition("?")
    return path + mark + _MASK if query else target


def mask_uri(uri: str) -> str:
    """Replace the user information and the query of a URI, valid or not, by ``***``.

    Args:
        uri: Any text.
    """
    return mask_query(mask_user_info(uri))


def mask_header(name: str, value: str) -> str:
    """Return the value of a header, or ``***`` if it is or may be a credential.

    Args:
        name: Name of the header, in any case.
        value: Value of the header.
    """
    key = name.lower()
    if key in _REFERENCES:
        return mask_uri(value)
    if not value or key in _HARMLESS:
        return value
    return _MASK if key == _SUBPROTOCOLS or _SENSITIVE.search(key) else value


def printable(text: str, *, limit: int = _LIMIT) -> str:
    """Make text of unknown origin safe to print on one line.

    Args:
        text: Any text.
        limit: Maximum number of characters; longer text is truncated.

    Returns:
        The text, with escapes for control characters, line separators and lone surrogates.
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
