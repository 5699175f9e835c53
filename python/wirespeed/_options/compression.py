"""Settings of permessage-deflate (RFC 7692)."""

from __future__ import annotations

import dataclasses
import sys

__all__ = ["Deflate", "compression_memory"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deflate:
    """Settings of the permessage-deflate extension (RFC 7692), for the argument ``compression``.

    The defaults of a client are those of the ``websockets`` library: both ends use context takeover, and the server
    chooses its window size.

    Attributes:
        server_no_context_takeover: Require the server to compress each message independently. This end then needs no
            window between messages.
        client_no_context_takeover: Let the client compress each message independently.
        server_max_window_bits: Maximum window of the server's compressor, as a power of two from 8 to 15; ``None`` for
            no requirement. The client needs a window of this size to decompress.
        client_max_window_bits: Maximum window of the client's compressor, as a power of two from 8 to 15; ``None`` to
            use the size that the server requests.
        level: Compression level, from 0 (no compression) to 9 (smallest result).
        memory_level: Memory of the compressor, from 1 to 9: 2 ** (memory_level + 9) bytes, plus its window.
        threshold: Messages of fewer bytes are sent uncompressed.

    Raises:
        TypeError: An argument has a wrong type.
        ValueError: An argument is out of range.
    """

    server_no_context_takeover: bool = False
    client_no_context_takeover: bool = False
    server_max_window_bits: int | None = None
    client_max_window_bits: int | None = None
    level: int = 6
    memory_level: int = 5
    threshold: int = 32

    def __post_init__(self) -> None:
        for name, low, high in (
            ("server_max_window_bits", 8, 15),
            ("client_max_window_bits", 8, 15),
            ("level", 0, 9),
            ("memory_level", 1, 9),
            ("threshold", 0, None),
        ):
            value = getattr(self, name)
            if value is None and name.endswith("bits"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an int, not {type(value).__name__}")
            if value < low or (high is not None and value > high):
                raise ValueError(f"{name} must be at least {low}{'' if high is None else f' and at most {high}'}")


def compression_memory(limit: int | None = None) -> int:
    """Return and set the memory limit for compression contexts that all connections keep between messages.

    Without room, a connection compresses each message independently, which is less effective, and takes a decompressor
    only while it receives a message. The default of 64 MiB is enough for some 300 active connections; idle connections
    keep no context. RFC 7692, section 7.1.1, allows a sender to drop its context at any time.

    Args:
        limit: New limit in bytes, 0 to keep no contexts; ``None`` to change nothing. Connections above the limit drop
            their contexts after their next message. Each thread may keep 1/64 of the limit, at most 1 MiB, for new
            connections.

    Returns:
        The limit in bytes before the call.

    Raises:
        TypeError: ``limit`` is not an int.
        ValueError: It is negative, or at least ``sys.maxsize``.
    """
    from .._native import compression_memory as native

    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be an int or None, not {type(limit).__name__}")
        if not 0 <= limit < sys.maxsize:
            raise ValueError(f"limit must be at least 0 and less than {sys.maxsize}")
    return native(limit)
