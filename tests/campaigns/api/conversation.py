"""The invariants that both ends of a connection must agree on, for any calls on one of them."""

from __future__ import annotations

import array
import ctypes
import gc
import itertools
import logging
import mmap
import threading
from collections.abc import Callable
from typing import Any

from .oracle import Misbehaved, Record, may_be
from .values import Choice, Maker

# Kinds of values whose content on the wire is known.
_KNOWN = ("text", "bytes", "mutable", "view", "buffer", "subclass", "equal")

# Log records of these connections are dropped: they would keep the objects alive that they refer to.
QUIET = logging.getLogger("api")
QUIET.setLevel(logging.CRITICAL + 1)

_NUMBERS = itertools.count()

# Limit of callbacks in one run.
_NESTED = 25


def as_bytes(message: Any) -> bytes:
    """Returns a message as it was on the wire, before decoding."""
    return message.encode() if isinstance(message, str) else bytes(message)


def is_single(value: Any) -> bool:
    """Returns whether no call takes the value for an iterable of fragments."""
    return isinstance(value, (str, bytes, bytearray, memoryview, array.array, mmap.mmap, ctypes.Array))


def content(choice: Choice, value: Any) -> bytes | None:
    """Returns the content on the wire of a value of a known kind; ``None``: the value is refused."""
    if choice[0] not in _KNOWN or not is_single(value):
        return None
    if isinstance(value, str):
        try:
            return str.encode(value)
        except UnicodeEncodeError:
            return None
    try:
        return memoryview(value).tobytes()
    except (TypeError, ValueError, BufferError):
        return None


class Conversation:
    """One run: the messages known to be sent, and the messages that came back from an echoing peer.

    Args:
        reenter: Action within callbacks; called with a number.
    """

    def __init__(self, reenter: Callable[[int], object]) -> None:
        self.record = Record()
        self.maker = Maker(self.nested)
        self._reenter = reenter
        self._thread = threading.get_ident()
        self._depth = self._calls = 0
        self.sent: list[bytes] = []
        self.own: list[bytes] = []
        self.perhaps: set[bytes] = set()
        self.received: list[bytes] = []
        # Unknown content was sent or lost; the connection may have been closed.
        self.unknown = self.lossy = self.closed = False
        # Callbacks are disabled.
        self.over = False

    def nested(self, number: int) -> None:
        """The function that the generated objects call."""
        # The collector runs in any thread. In other threads than this one, asyncio connections may refuse calls.
        if threading.get_ident() != self._thread:
            return
        if self.over or self._depth > 1 or self._calls > _NESTED:
            return
        self._depth += 1
        self._calls += 1
        try:
            with self.record.calling(f"within a callback, {number}"):
                self._reenter(number)
        finally:
            self._depth -= 1

    def token(self) -> str:
        """Returns a unique text."""
        return f"own-{next(_NUMBERS)}"

    def note_own(self, text: str) -> None:
        """Records that the text was sent at some time."""
        self.own.append(text.encode())

    def note_received(self, messages: Any) -> None:
        """Records messages that a call has returned."""
        for message in messages if isinstance(messages, list) else [messages]:
            self.received.append(as_bytes(message))

    def note_sent(self, choice: Choice, value: Any, expected: bytes | None) -> None:
        """Records that a value of this choice was sent."""
        if choice[0] not in _KNOWN or not is_single(value):
            self.unknown = True
        elif expected is None:
            raise Misbehaved(f"what is no message was sent: {choice}")
        else:
            self.sent.append(expected)

    def note_error(self, exc: BaseException, what: str, *values: Any) -> None:
        """Records an exception of a call with these values."""
        if isinstance(exc, (AttributeError, LookupError)) and any(type(value).__name__ == "Evil" for value in values):
            return  # the object has answered nonsense to its caller
        if not may_be(exc):
            raise Misbehaved(f"{what}: {type(exc).__name__}: {exc}") from exc

    def compare(self) -> None:
        """Compares the sent with the received messages; all of them have arrived."""
        own = {text for text in self.received if text.startswith(b"own-")}
        if not self.lossy and own - self.perhaps != set(self.own):
            raise Misbehaved(f"sent {sorted(self.own)}, came back {sorted(own)}")
        others = [message for message in self.received if not message.startswith(b"own-")]
        if not self.unknown and not self.lossy and others != self.sent:
            raise Misbehaved(f"sent {_brief(self.sent)}, came back {_brief(others)}")
        if not self.lossy:
            left = iter(others)
            if not all(message in left for message in self.sent):
                raise Misbehaved(f"sent {_brief(self.sent)} and more, came back {_brief(others)}")

    def finish(self) -> None:
        """Checks for leaks. Objects made for this run must be referenced only from here."""
        self.record.check()
        self.maker.finish()
        if any(reference() is not None for reference in self.maker.made):
            gc.collect()
        alive = [repr(type(value)) for reference in self.maker.made if (value := reference()) is not None]
        if alive:
            raise Misbehaved(f"still alive: {alive}")


def _brief(messages: list[bytes]) -> list[bytes]:
    return [message if len(message) < 60 else message[:60] + b"... %d" % len(message) for message in messages]
