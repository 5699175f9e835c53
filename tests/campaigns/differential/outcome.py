"""The outcome of a case, in a form that compares implementations; and a strict reader of sent bytes."""

from __future__ import annotations

import dataclasses
import zlib

from support.frames import CLOSE, CONT, PING, PONG

from .case import Deflate

Event = tuple[object, ...]

_TAIL = b"\x00\x00\xff\xff"


class Violation(Exception):
    """The sent bytes break RFC 6455 or RFC 7692."""


@dataclasses.dataclass
class Happening:
    """The effects of a step.

    Attributes:
        events: Events for the application: ``("text" or "binary", bytes, fin)``, ``("ping" or "pong", bytes)``,
            ``("close", code, reason)`` with 1005 for no code, ``("fault", code)``.
        frames: Sent frames: ``(opcode, fin, payload)``, inflated; of a close frame for a protocol error the code alone,
            because each implementation has its own text.
        refused: Whether the call raised.
    """

    events: list[Event] = dataclasses.field(default_factory=list)
    frames: list[Event] = dataclasses.field(default_factory=list)
    refused: bool = False


@dataclasses.dataclass
class Outcome:
    """All steps, and the final state of the connection.

    Attributes:
        close: The code that the application gets in the end, by RFC 6455 7.1.5: 1006 without a close frame.
        sent: The code of our close frame.
        received_first: Which of the two was first, if there are both.
    """

    steps: list[Happening] = dataclasses.field(default_factory=list)
    close: int = 1006
    sent: int | None = None
    received_first: bool | None = None

    def __str__(self) -> str:
        lines = []
        for number, step in enumerate(self.steps):
            parts = [*(f"-> {_show(event)}" for event in step.events), *(f"<- {_show(f)}" for f in step.frames)]
            parts += ["refused"] if step.refused else []
            lines += [f"  {number}: {'; '.join(parts)}"] if parts else []
        lines.append(f"  end: close {self.close}, sent {self.sent}, received first: {self.received_first}")
        return "\n".join(lines)


def _show(event: Event) -> str:
    return " ".join(
        f"[{len(item)}] {item[:40].hex(' ')}{'...' if len(item) > 40 else ''}" if isinstance(item, bytes) else str(item)
        for item in event
    )


class Sent:
    """Reads the bytes that one end sends; anything that the RFCs forbid is a violation.

    Args:
        masked: Whether that end is the client.
        deflate: The negotiated parameters, from its point of view.
        late: Whether it may send control frames after its close frame: RFC 6455 forbids only data there (5.5.1).
    """

    def __init__(self, *, masked: bool, deflate: Deflate | None, late: bool = False) -> None:
        self.masked = masked
        self.late = late
        self.deflate = deflate
        self.inflater = zlib.decompressobj(-deflate.local_bits) if deflate else None
        self.open = False
        self.compressed = False
        self.closed = False

    def read(self, data: bytes, *, faulty: bool = False) -> list[Event]:
        """Returns the frames in the bytes, which must be complete.

        Args:
            faulty: Whether a close frame in them reports a protocol error.
        """
        frames: list[Event] = []
        while data:
            opcode, fin, rsv, payload, data = self._cut(data)
            if self.closed and opcode != PONG and not (self.late and opcode == PING):
                raise Violation("a frame comes behind the close frame")
            if opcode == CLOSE:
                self.closed = True
                frames.append(_close(payload, faulty=faulty))
            else:
                frames.append((opcode, fin, self._content(opcode, fin, rsv, payload)))
        return frames

    def _cut(self, data: bytes) -> tuple[int, bool, int, bytes, bytes]:
        if len(data) < 2:
            raise Violation("a header is cut")
        size, at = data[1] & 0x7F, 2
        if size > 125:
            at = 4 if size == 126 else 10
            size = int.from_bytes(data[2:at], "big")
            if size < (126 if at == 4 else 65_536):
                raise Violation("a length is not in its shortest form")
        if bool(data[1] & 0x80) != self.masked:
            raise Violation("a frame is masked, or is not, against its side")
        key = b""
        if self.masked:
            key, at = data[at : at + 4], at + 4
        payload = data[at : at + size]
        if len(payload) < size:
            raise Violation("a frame is cut")
        if key:
            payload = unmask(payload, key)
        return data[0] & 0xF, bool(data[0] & 0x80), data[0] >> 4 & 7, payload, data[at + size :]

    def _content(self, opcode: int, fin: bool, rsv: int, payload: bytes) -> bytes:
        if opcode in (PING, PONG):
            if rsv or not fin or len(payload) > 125:
                raise Violation("a control frame breaks the rules")
            return payload
        if (opcode == CONT) != self.open or opcode > 2:
            raise Violation(f"a frame with opcode {opcode} comes {'inside' if self.open else 'outside'} a message")
        if opcode != CONT:
            self.compressed = bool(rsv & 4)
            if self.compressed and self.deflate is not None and self.deflate.local_reset:
                self.inflater = zlib.decompressobj(-self.deflate.local_bits)
        if rsv & 3 or (rsv & 4 and (opcode == CONT or self.inflater is None)):
            raise Violation(f"reserved bits: {rsv}")
        self.open = not fin
        if not self.compressed or self.inflater is None:
            return payload
        try:
            inflated = self.inflater.decompress(payload + (_TAIL if fin else b""))
        except zlib.error as exc:
            raise Violation(f"what was sent does not inflate: {exc}") from None
        if self.inflater.eof or self.inflater.unconsumed_tail:
            raise Violation("what was sent does not inflate to its end")
        return inflated


def _close(payload: bytes, *, faulty: bool) -> Event:
    if len(payload) == 1 or len(payload) > 125:
        raise Violation("a close frame breaks the rules")
    payload[2:].decode()
    return (CLOSE, payload[:2]) if faulty else (CLOSE, payload)


def unmask(data: bytes, key: bytes) -> bytes:
    """Masks or unmasks bytes."""
    size = len(data)
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(data, "big") ^ mask).to_bytes(size, "big")
