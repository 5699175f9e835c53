"""The content of the messages and what must arrive: the same for every Python peer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["ContentError", "Sink", "Stream", "two_messages"]


class ContentError(Exception):
    """What arrived is not what was due."""


def two_messages(size: int) -> list[bytes]:
    """Returns two messages that differ in every byte: a reply that is late by one is noticed."""
    one = (bytes(index * 7 & 0xFF for index in range(256)) * (size // 256 + 1))[:size]
    return [one, one.translate(bytes(range(255, -1, -1)))]


class Stream:
    """The expected content of /blast: message number i is i in 8 bytes, little-endian, then a fixed pattern.

    `encode` makes of a message what the library returns for it.
    """

    def __init__(self, size: int, encode: Callable[[bytes], Any] = lambda message: message) -> None:
        if size < 8:
            raise ContentError(f"/blast numbers its messages: a size of {size} is too small, 8 is the least")
        self.position = 0
        self.encode = encode
        self.tail = (bytes(range(256)) * (size // 256 + 1))[8:size]

    def check(self, message: object, count: int) -> None:
        """Checks the last of `count` messages: its number proves that all before it came, once and in order."""
        self.position += count
        expected = (self.position - 1).to_bytes(8, "little") + self.tail
        if self.encode(expected) != message:
            try:
                found = (
                    f"carries number {int.from_bytes(bytes(memoryview(message)[:8]), 'little')}, or has other content"
                )
            except TypeError:
                found = f"is {str(message)[:100]}"
            raise ContentError(f"message {self.position - 1} of the stream {found}")


class Sink:
    """What /sink must have received; its answer ends the window, so that nothing counts that is still in a buffer."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0

    def check(self, answer: object) -> None:
        """Compares the answer of /sink with what was sent."""
        try:
            arrived = json.loads(answer if isinstance(answer, (str, bytes)) else bytes(answer))
        except (TypeError, ValueError):
            raise ContentError(f"/sink answered {answer!r}") from None
        expected = {"messages": self.sent, "bytes": self.sent * self.size}
        if arrived != expected:
            raise ContentError(f"/sink received {arrived}, sent was {expected}")
