"""What to ask of permessage-deflate (RFC 7692)."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._native_types import DeflateOptions

__all__ = ["Deflate", "compression_memory", "deflate_options"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deflate:
    """Settings of the permessage-deflate extension, RFC 7692; pass them as ``compression``.

    The defaults of a client are those of the ``websockets`` library: each end remembers what it compressed before
    (context takeover), the server chooses its window.

    Attributes:
        server_no_context_takeover: Demand that the server compresses each message by itself. Saves this end the memory
            of a window between messages.
        client_no_context_takeover: Compress each message by itself.
        server_max_window_bits: Largest window of the server's compressor, as a power of two from 8 to 15, ``None``
            for no demand. This end needs that much memory for decompressing.
        client_max_window_bits: Largest window of the client's compressor, from 8 to 15, ``None`` for what the server
            asks.
        level: Effort, from 0 (store) to 9 (smallest).
        memory_level: Memory of the compressor, from 1 to 9: 2 ** (memory_level + 9) bytes beside its window.
        threshold: Messages of fewer bytes are sent uncompressed.

    Raises:
        TypeError: An argument has another type.
        ValueError: An argument is out of its range.
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
    """Return how much memory all connections of this process together may keep for compression between messages.

    A connection that finds no room compresses each message by itself, which shrinks it less, and is given a
    decompressor when a message comes. With the 64 MiB of the beginning some 300 connections that talk at the same time
    keep theirs; idle ones keep none. RFC 7692, section 7.1.1, allows a sender to forget at any time.

    Args:
        limit: Bytes from now on, 0 for none; ``None`` to change nothing. Who has more gives it up after its next
            message. A thread may keep a 64th of it, 1 MiB at most, for connections to come.

    Returns:
        The bytes before the call.

    Raises:
        TypeError: ``limit`` is no int.
        ValueError: It is negative, or more than a machine can have.
    """
    from .._native import compression_memory as native

    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"limit must be an int or None, not {type(limit).__name__}")
        if not 0 <= limit < sys.maxsize:
            raise ValueError(f"limit must be at least 0 and less than {sys.maxsize}")
    return native(limit)


def deflate_options(compression: Deflate | str | None) -> DeflateOptions | None:
    """Return the settings in the form of the native core, ``None`` for no compression.

    Args:
        compression: What the user passed: ``"deflate"`` for the defaults.

    Raises:
        TypeError: It has another type.
        ValueError: It is another name.
    """
    if compression is None:
        return None
    if isinstance(compression, str):
        if compression != "deflate":
            raise ValueError(f'compression must be "deflate", a Deflate or None, not {compression!r}')
        compression = Deflate()
    if not isinstance(compression, Deflate):
        raise TypeError(f'compression must be "deflate", a Deflate or None, not {type(compression).__name__}')
    return {
        "level": compression.level,
        "memory_level": compression.memory_level,
        "threshold": compression.threshold,
        "server_no_context_takeover": bool(compression.server_no_context_takeover),
        "client_no_context_takeover": bool(compression.client_no_context_takeover),
        "server_max_window_bits": compression.server_max_window_bits,
        "client_max_window_bits": compression.client_max_window_bits,
    }
