"""The head of a request as uvicorn hands it over, and as the native core takes it.

uvicorn has parsed and checked the head, and writes it anew: each field is a line, names are in lower case, and whatever
the version was, the request line says HTTP/1.1. Pure functions.
"""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "essence", "with_version"]

HEAD_BYTES = 2**16
"""How long a head may be: what h11 lets pass, and so uvicorn by default."""

# How long a head of the core may be, and how many fields it may have.
_CORE_BYTES = 2**14
_CORE_FIELDS = 128

# What the core looks at, beside names that begin with sec-websocket-: RFC 6455, section 4.2.1; RFC 9112,
# section 6.
_ESSENTIAL = frozenset([b"host", b"upgrade", b"connection", b"content-length", b"transfer-encoding"])


def with_version(head: bytes, version: str) -> bytes:
    """Return a head with the version that the client wrote.

    Args:
        head: A head that uvicorn has written.
        version: Such as ``1.0``.
    """
    if version == "1.1":
        return head
    return head.replace(b" HTTP/1.1\r\n", b" HTTP/%s\r\n" % version.encode("ascii"), 1)


def essence(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]] | None]:
    """Return a head that the core takes, without fields that are for the application alone, and all the fields.

    A head that is not too long for the core, and one that is longer than it may be, is returned as it is, and ``None``:
    the core has, or refuses, all of it. Cookies and tokens can make a head long; the connection does not keep them.

    Args:
        head: A head that uvicorn has written.
    """
    if not _CORE_BYTES < len(head) <= HEAD_BYTES:
        return head, None
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) > _CORE_FIELDS:
        return head, None
    kept, fields = [first], []
    for line in lines:
        name, _, value = line.partition(b":")
        if name in _ESSENTIAL or name.startswith(b"sec-websocket-"):
            kept.append(line)
        fields.append((name, value.strip(b" \t")))
    return b"\r\n".join([*kept, b"", b""]), fields
