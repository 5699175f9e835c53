"""A simple implementation of the WebSocket wire format, independent of the library under test.

It checks nothing, so that it can write every deviation that RFC 6455 forbids.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib

__all__ = [
    "BINARY", "CLOSE", "CONT", "PING", "PONG", "TEXT",
    "Close", "Frame", "binary", "close", "deflate", "frame", "ping", "pong", "text",
]  # fmt: skip

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

RSV1 = 0x40
FIN = 0x80


@dataclasses.dataclass(frozen=True)
class Close:
    """A close frame as the tests compare it; code 1005 stands for an empty payload."""

    code: int
    reason: str = ""

    @classmethod
    def parse(cls, payload: bytes) -> Close:
        if not payload:
            return cls(1005)
        return cls(struct.unpack("!H", payload[:2])[0], payload[2:].decode())


@dataclasses.dataclass(frozen=True)
class Frame:
    """A frame as received, unmasked; ``masked`` records whether it was masked."""

    opcode: int
    payload: bytes
    fin: bool = True
    rsv: int = 0
    masked: bool = True


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bytes | None = None,
    length: int | None = None,
    length_bytes: int | None = None,
) -> bytes:
    """Encodes a frame.

    Args:
        rsv: the reserved bits, 4 for RSV1, 2 for RSV2, 1 for RSV3.
        mask: four bytes to mask with, as a server must not.
        length: the length to declare, when it is not the one of the payload.
        length_bytes: 0, 2 or 8 extended length bytes, when it is not the shortest form.
    """
    declared = len(payload) if length is None else length
    if length_bytes is None:
        length_bytes = 0 if declared < 126 else 2 if declared < 65536 else 8
    head = bytes([(FIN if fin else 0) | rsv << 4 | opcode])
    masked = FIN if mask is not None else 0
    if length_bytes == 0:
        head += bytes([masked | declared])
    elif length_bytes == 2:
        head += struct.pack("!BH", masked | 126, declared)
    else:
        head += struct.pack("!BQ", masked | 127, declared)
    if mask is not None:
        head += mask
        payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return head + payload


def text(message: str | bytes, *, fin: bool = True, rsv: int = 0) -> bytes:
    return frame(TEXT, message.encode() if isinstance(message, str) else message, fin=fin, rsv=rsv)


def binary(message: bytes, *, fin: bool = True, rsv: int = 0) -> bytes:
    return frame(BINARY, message, fin=fin, rsv=rsv)


def ping(payload: bytes = b"") -> bytes:
    return frame(PING, payload)


def pong(payload: bytes = b"") -> bytes:
    return frame(PONG, payload)


def close(code: int | None = None, reason: str | bytes = "") -> bytes:
    if code is None:
        return frame(CLOSE)
    return frame(CLOSE, struct.pack("!H", code) + (reason.encode() if isinstance(reason, str) else reason))


def deflate(message: bytes, *, window_bits: int = 15) -> bytes:
    """Compresses one message as RFC 7692 section 7.2.1 specifies."""
    compressor = zlib.compressobj(wbits=-window_bits)
    data = compressor.compress(message) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return data[:-4]
