"""Messages that contain their sender, number, size and checksum. Both ends make and check them alike."""

from __future__ import annotations

import dataclasses
import random
import zlib
from typing import Any

# Longer than any header: a first fragment of this size identifies its message.
HEADER = 30

_RANDOM = random.Random(20)
# Incompressible and compressible content. Both are text, so that every message may be either.
_POOL = "".join(_RANDOM.choices("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=65_536)) * 20
_FLAT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 18_000


# A byte that no text contains.
_SPOILT = b"\xff"


class Damaged(Exception):
    """A message was changed."""


@dataclasses.dataclass(frozen=True, order=True)
class Ident:
    """The sender of a message, and its number."""

    task: int
    number: int

    def __str__(self) -> str:
        return f"{self.task}.{self.number}"


def make(ident: Ident, size: int, *, text: bool) -> str | bytes:
    """Makes a message.

    Args:
        ident: The sender and number.
        size: Bytes, ``HEADER`` at least.
        text: Whether it is a ``str``.
    """
    size = max(size, HEADER)
    pool = _FLAT if ident.number % 3 == 0 else _POOL
    start = 97 * ident.number % 50_000
    body = pool[start : start + size - HEADER]
    crc = zlib.crc32(body.encode())
    message = f"{ident.task}.{ident.number}.{size}.{crc:08x}|".ljust(HEADER, "_") + body
    if len(message) != size:
        raise ValueError(f"no message can have {size} bytes")
    return message if text else message.encode()


def spoil(message: bytes) -> bytes:
    """Returns a message of `make` that is not UTF-8, but can still be read."""
    return message[:-1] + _SPOILT


def read(message: Any, *, whole: bool = True) -> Ident:
    """Checks a message and returns its sender and number.

    Args:
        message: As it was received.
        whole: Whether it is all of it, and not the beginning.

    Raises:
        Damaged: The message was changed.
    """
    text = message if isinstance(message, str) else bytes(message).decode("ascii", "replace")
    spoilt = not isinstance(message, str) and bytes(message[-1:]) == _SPOILT
    try:
        head, _, _ = text[:HEADER].partition("|")
        task, number, size, crc = head.split(".")
        ident = Ident(int(task), int(number))
        declared, checksum = int(size), int(crc, 16)
    except ValueError:
        raise Damaged(f"no message of ours: {len(text)} bytes, {text[:40]!r}") from None
    if whole and len(text) != declared:
        raise Damaged(f"message {ident} has {len(text)} bytes of {declared}")
    if whole and spoilt:
        if bytes(message) != spoil(bytes(make(ident, declared, text=False))):  # type: ignore[arg-type]
            raise Damaged(f"message {ident} of {declared} bytes has another content")
    elif whole and zlib.crc32(text[HEADER:].encode()) != checksum:
        raise Damaged(f"message {ident} of {declared} bytes has another content")
    return ident
