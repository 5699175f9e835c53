"""Converts the request head of uvicorn to a head for the native core. All functions are pure.

uvicorn has parsed and checked the head, and writes it again: one line for each field, names in lower case, and always
HTTP/1.1 as the version.
"""

from __future__ import annotations

__all__ = ["HEAD_BYTES", "essential_head", "with_version"]

HEAD_BYTES = 2**16
"""Maximum size of a head in bytes: the limit of h11, which uvicorn uses by default."""

# Limits of the core: bytes and number of fields of a head.
_CORE_BYTES = 2**14
_CORE_FIELDS = 128

# Fields that the core uses, besides names that begin with sec-websocket- (RFC 6455, section 4.2.1; RFC 9112, section
# 6).
_ESSENTIAL = frozenset([b"host", b"upgrade", b"connection", b"content-length", b"transfer-encoding"])


def with_version(head: bytes, version: str) -> bytes:
    """Return a head with the HTTP version that the client sent.

    Args:
        head: A head written by uvicorn.
        version: The version, such as ``1.0``.
    """
    if version == "1.1":
        return head
    return head.replace(b" HTTP/1.1\r\n", b" HTTP/%s\r\n" % version.encode("ascii"), 1)


def essential_head(head: bytes) -> tuple[bytes, list[tuple[bytes, bytes]] | None]:
    """Return a head within the limits of the core, without fields that only the application needs, and all fields.

    If the head is within the limits, or above the limit of uvicorn, it is returned unchanged with ``None``: the core
    then has, or refuses, all fields. Long heads usually have cookies or tokens, which the connection need not keep.

    Args:
        head: A head written by uvicorn.
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
