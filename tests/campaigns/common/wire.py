"""Frames of the peer: written and read independently of the library under test, masked and compressed if necessary."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from support.frames import CONT, TEXT, Frame

_BINARY = 2
_RSV1 = 4


class Violation(Exception):
    """The library under test has sent data that RFC 6455 or 7692 forbids."""


def _xor(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")


class Codec:
    """Both directions of one connection.

    Args:
        masks: Whether this end is the client.
        deflate: Whether permessage-deflate was negotiated.
    """

    def __init__(self, *, masks: bool, deflate: bool) -> None:
        self.masks = masks
        self.compressor = zlib.compressobj(wbits=-15) if deflate else None
        self.inflater = zlib.decompressobj(wbits=-15) if deflate else None
        self.buffer = bytearray()
        self.parts: list[bytes] = []
        self.kind = 0
        self.compressed = False

    def frame(self, opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0) -> bytes:
        """Encodes a frame."""
        size = len(payload)
        head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
        bit = 0x80 if self.masks else 0
        if size < 126:
            head += bytes([bit | size])
        elif size < 65_536:
            head += bytes([bit | 126]) + size.to_bytes(2, "big")
        else:
            head += bytes([bit | 127]) + size.to_bytes(8, "big")
        if not self.masks:
            return head + payload
        mask = os.urandom(4)
        return head + mask + _xor(payload, mask)

    def message(self, parts: list[bytes], *, text: bool, between: bytes = b"") -> bytes:
        """Encodes a message.

        Args:
            parts: Its fragments.
            text: Whether it is text.
            between: Bytes after the first fragment.
        """
        out = b""
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            rsv = 0
            if self.compressor is not None:
                part = self.compressor.compress(part) + self.compressor.flush(zlib.Z_SYNC_FLUSH)
                # RFC 7692, section 7.2.1: the tail goes at the end of the message only.
                part = part[:-4] if last else part
                rsv = _RSV1 if number == 0 else 0
            opcode = CONT if number else TEXT if text else _BINARY
            out += self.frame(opcode, part, fin=last, rsv=rsv)
            if number == 0:
                out += between
        return out

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Processes bytes, yields each complete frame."""
        self.buffer += data
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Frame | None:
        buffer = self.buffer
        if len(buffer) < 2:
            return None
        size, at = buffer[1] & 0x7F, 2
        if size > 125:
            at = 4 if size == 126 else 10
            if len(buffer) < at:
                return None
            size = int.from_bytes(buffer[2:at], "big")
        masked = bool(buffer[1] & 0x80)
        if masked == self.masks:
            raise Violation("a frame is masked" if masked else "a frame is not masked")
        end = at + (4 if masked else 0) + size
        if len(buffer) < end:
            return None
        data = bytes(buffer[at + 4 : end] if masked else buffer[at:end])
        payload = _xor(data, bytes(buffer[at : at + 4])) if masked else data
        first = buffer[0]
        del buffer[:end]
        return Frame(first & 0xF, payload, bool(first & 0x80), first >> 4 & 7, masked)

    def assemble(self, frame: Frame) -> bytes | None:
        """Returns the message that a data frame completes, if it does.

        Raises:
            Violation: The frame is not allowed here.
        """
        if (frame.opcode == CONT) != bool(self.kind):
            raise Violation(
                f"a frame with opcode {frame.opcode} comes {'inside' if self.kind else 'outside'} a message"
            )
        if frame.opcode != CONT:
            self.kind = frame.opcode
            self.compressed = bool(frame.rsv & _RSV1)
        if frame.rsv and (frame.rsv != _RSV1 or frame.opcode == CONT or self.inflater is None):
            raise Violation(f"reserved bits {frame.rsv}")
        self.parts.append(frame.payload)
        if not frame.fin:
            return None
        message = b"".join(self.parts)
        self.parts, self.kind = [], 0
        if self.compressed and self.inflater is not None:
            try:
                message = self.inflater.decompress(message + b"\x00\x00\xff\xff")
            except zlib.error as exc:
                raise Violation(f"a message cannot be inflated: {exc}") from None
        return message

    @property
    def in_message(self) -> bool:
        return bool(self.kind)
