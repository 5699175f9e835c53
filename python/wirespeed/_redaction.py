"""What text shown to people must not contain: credentials, and characters that forge lines of a log.

It knows the spelling of URIs and HTTP headers, and no type of this package. Exceptions and the ``repr`` of the data
structures call it. Functions here must accept any text, however malformed: they run while an error is being reported.
"""

from __future__ import annotations

import re

__all__ = ["mask_header", "mask_query", "mask_uri", "mask_user_info", "printable"]

# Applications make up names for headers with credentials, such as X-Api-Key: what they call them tells.
_SENSITIVE = re.compile("auth|cookie|key|password|secret|session|token")

# In browsers, programs can set no header but this one: there is where they put tokens.
_SUBPROTOCOLS = "sec-websocket-protocol"

# What everybody may see of those: a random number, and how a server wants clients to authenticate.
_HARMLESS = frozenset({"sec-websocket-key", "www-authenticate", "proxy-authenticate"})

# Those whose values are URIs.
_REFERENCES = frozenset({"location", "content-location", "referer"})

_MASK = "***"

# Long enough for any URI or header that a person reads in an error, short enough for a line of a log.
_LIMIT = 500

_PREFIX = re.compile(r"[^/?#]*?//")


def mask_user_info(uri: str) -> str:
    """Replace the user information of a URI, valid or not, by ``***``.

    A URI is often invalid because its password contains ``/``, ``?``, ``#`` or ``@``. So everything up to the last
    ``@`` is hidden as soon as it may belong to a password, even if this hides a part of the path.

    Args:
        uri: Any text.

    Returns:
        The same text, without user name and password.
    """
    start = prefix.end() if (prefix := _PREFIX.match(uri)) else 0
    end = uri.rfind("@")
    if end < start:
        return uri
    authority = re.split(r"[/?#]", uri[start:], maxsplit=1)[0]
    # A host and a port can look like a user and the beginning of a password, except for the colons of IPv6.
    if "@" in authority or ":" in authority.rpartition("]")[2]:
        return uri[:start] + _MASK + uri[end:]
    return uri


def mask_query(target: str) -> str:
    """Replace the query of a path or a URI by ``***``: tokens travel in it.

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
    """Return the value of a header, or ``***`` where it is a credential, or may be.

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
        limit: Length in characters beyond which the text is cut.

    Returns:
        The text, with escapes for control characters, line separators and lone surrogates.
    """
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
