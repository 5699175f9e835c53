"""The content of the messages and what must arrive: the same for every Python peer."""

import json
from collections.abc import Callable, Iterator
from operator import attrgetter, itemgetter
from typing import Any

__all__ = ["ContentError", "File", "Sink", "Stream", "payload_of", "two_messages", "unwrapping"]


class ContentError(Exception):
    """What arrived is not what was due."""


def two_messages(size: int) -> list[bytes]:
    """Returns two messages that differ in every byte: a reply that is late by one is noticed."""
    one = (bytes(index * 7 & 0xFF for index in range(256)) * (size // 256 + 1))[:size]
    return [one, one.translate(bytes(range(255, -1, -1)))]


def unwrapping(encode: Callable[[bytes], Any], size: int) -> Callable[[Any], Any]:
    """Returns a function that takes the payload out of what a library returns for a binary message of this size.

    Where the payload is, `encode` tells, which makes of a message what the library returns for it. The rest, type and
    flags or the head of a frame, must be that of a binary message.
    """
    message = two_messages(max(size, 1))[0][:size]
    wrapped = encode(message)
    if wrapped is message:
        return lambda reply: reply
    if isinstance(wrapped, bytes):
        head = wrapped[: len(wrapped) - size]
        return lambda reply: memoryview(reply)[len(head) :] if reply.startswith(head) else _not_binary(reply)
    inside = payload_of(encode)

    def payload(reply: Any) -> Any:
        found = inside(reply)
        return found if encode(found) == reply else _not_binary(reply)

    return payload


def payload_of(encode: Callable[[bytes], Any]) -> Callable[[Any], Any]:
    """Returns a function that takes the payload out of what a library returns for a message, whatever its type."""
    message = b"payload"
    wrapped = encode(message)
    if wrapped is message:
        return lambda reply: reply
    if isinstance(wrapped, tuple):
        return itemgetter(next(index for index, part in enumerate(wrapped) if part is message))
    return attrgetter(next(name for name, part in vars(wrapped).items() if part is message))


def _not_binary(reply: object) -> Any:
    raise ContentError(f"what arrived is no binary message: {str(reply)[:100]}")


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
        expected = self.message(self.position - 1)
        if self.encode(expected) != message:
            try:
                number = int.from_bytes(bytes(memoryview(message)[:8]), "little")  # type: ignore[arg-type]
                found = f"carries number {number}, or has other content"
            except TypeError:
                found = f"is {str(message)[:100]}"
            raise ContentError(f"message {self.position - 1} of the stream {found}")

    def takes(self, message: object) -> bool:
        """Tells whether this is the message that is due, and if so takes it."""
        due = self.encode(self.message(self.position)) == message
        self.position += due
        return due

    def message(self, number: int) -> bytes:
        """Returns the message of this number."""
        return number.to_bytes(8, "little") + self.tail


def _told(answer: Any, otherwise: str) -> Any:
    try:
        return json.loads(answer if isinstance(answer, (str, bytes)) else bytes(memoryview(answer)))
    except (TypeError, ValueError):
        raise ContentError(f"{otherwise} {str(answer)[:100]}") from None


def _arrived(told: Any, sent: int, *, merges: bool) -> int:
    """Returns the messages that must have arrived: all that were sent, or fewer where several may have become one."""
    found = told.get("messages") if merges and isinstance(told, dict) else None
    return found if isinstance(found, int) and min(1, sent) <= found <= sent else sent


class Sink:
    """What /sink must have received; its answer ends the window, so that nothing counts that is still in a buffer.

    `merges`: whether the library may send several messages as one.
    """

    def __init__(self, size: int, *, merges: bool = False) -> None:
        self.size, self.merges = size, merges
        self.sent = 0

    def check(self, answer: object) -> None:
        """Compares the answer of /sink with what was sent."""
        arrived = _told(answer, "/sink answered")
        messages = _arrived(arrived, self.sent, merges=self.merges)
        expected = {"messages": messages, "bytes": self.sent * self.size}
        if arrived != expected:
            raise ContentError(f"/sink received {arrived}, sent was {expected}")


class File:
    """A file in messages of a size, the last one as long as what is left; they are numbered as those of /blast are.

    Attributes:
        count: its messages.
        length: its bytes.
    """

    def __init__(self, size: int, length: int, *, merges: bool = False) -> None:
        if length < 8:
            raise ContentError(f"a file of {length} bytes is too small, 8 is the least")
        self._stream = Stream(size)
        self._size, self._merges = size, merges
        self.length = length
        self.count = -(-length // size)

    def parts(self, size: int) -> Iterator[list[bytes]]:
        """Yields the messages, `count` together, in lists of about so many bytes."""
        each = max(1, size // self._size)
        for first in range(0, self.count, each):
            numbers = range(first, min(first + each, self.count))
            yield [self._stream.message(number)[: self.length - number * self._size] for number in numbers]

    def check(self, answer: object, digest: str, times: int = 1) -> None:
        """Compares what the server says of all that went one way with the digest of this end.

        Args:
            answer: the server's counts and digest.
            digest: the SHA-256 of all bytes that were sent, or have arrived, here.
            times: how many times the file went over.
        """
        told = _told(answer, "at the end of a file the server says")
        messages = _arrived(told, self.count * times, merges=self._merges)
        expected = {"messages": messages, "bytes": self.length * times, "sha256": digest}
        if told != expected:
            raise ContentError(f"a file of {expected} went over, the server says {told}")
