"""Messages for /stamp, which says when it took a message and when it sent the reply: one way, and the other.

The server's clock is CLOCK_MONOTONIC, as `time.monotonic_ns` is here: both must run on the same machine.
"""

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from models.content import ContentError, two_messages
from models.latency import Latencies

__all__ = ["Stamps"]

HEAD = struct.Struct("<QQQ")


class Stamps:
    """Numbered messages of a size, their replies, and how long each way took.

    `encode` makes of a message what is sent, before the clock is read.
    """

    def __init__(self, size: int, encode: Callable[[bytes], Any] = lambda message: message) -> None:
        if size < HEAD.size:
            raise ContentError(f"/stamp writes into a message: a size of {size} is too small, {HEAD.size} is the least")
        messages = two_messages(size)
        self._encode = encode
        self._tails = [message[HEAD.size :] for message in messages]
        # What is due: bytearrays compare with all that libraries return, memoryviews among them, without a
        # copy.
        self._due = [bytearray(message) for message in messages]
        self._begun: deque[int] = deque()
        self._sent = 0
        self._received = 0
        self._out, self._in, self._whole = Latencies(), Latencies(), Latencies()

    def message(self) -> Any:
        """Builds the next message and takes note of the time: it must be sent at once."""
        number = self._sent
        message = self._encode(HEAD.pack(number, 0, 0) + self._tails[number & 1])
        self._sent += 1
        self._begun.append(time.monotonic_ns())
        return message

    def take(self, payload: Any, now: int) -> None:
        """Checks a reply in full, and that it is the one that is due; `now` is when it was there."""
        number = self._received
        due = self._due[number & 1]
        try:
            begun = self._begun.popleft()
            _, received, sent = HEAD.unpack_from(payload)
        except (IndexError, TypeError, struct.error):
            raise ContentError(f"the reply to message {number} of /stamp is no stamped message") from None
        HEAD.pack_into(due, 0, number, received, sent)
        if due != payload:
            raise ContentError(f"the reply to message {number} of /stamp is another, or has other content")
        if not begun <= received <= sent <= now:
            raise ContentError("the server's stamps do not lie between sending and receiving: it has another clock")
        self._received += 1
        if not self._whole.full:
            self._out.add(received - begun)
            self._in.add(now - sent)
            self._whole.add(now - begun)

    def clear(self) -> None:
        """Forgets how long the replies of the warm-up took."""
        for latencies in (self._out, self._in, self._whole):
            latencies.clear()

    def figures(self) -> dict[str, object]:
        """Returns the figures of both halves and of the whole."""
        halves = {"out": self._out.figures(), "in": self._in.figures()}
        more = {f"{way}_{name}": half[name] for way, half in halves.items() for name in ("p50", "p99", "p999")}
        return self._whole.figures() | more
