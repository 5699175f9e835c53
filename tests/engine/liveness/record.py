"""What was done and what came of it. Whoever writes into a list is one thread, or holds the lock."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from wirespeed.engine import Session

__all__ = ["Call", "Ident", "Record", "Seen", "make", "read"]

Ident = tuple[int, int]
"""Who sent a message, and which of its own it is."""

_FILLING = "It was a bright cold day in April, and the clocks were striking thirteen. " * 1_000


def make(ident: Ident, size: int, *, text: bool) -> str | bytes:
    """A message that says who it is from, and how long it is."""
    head = f"{ident[0]}.{ident[1]}.{size}|"
    message = head + _FILLING[: max(0, size - len(head))]
    return message if text else message.encode()


def read(message: str | bytes | bytearray) -> Ident:
    """Who a message is from.

    Raises:
        ValueError: It is not as it was made.
    """
    text = message if isinstance(message, str) else bytes(message).decode()
    head, _, body = text.partition("|")
    actor, number, size = map(int, head.split("."))
    if body != _FILLING[: max(0, size - len(head) - 1)]:
        raise ValueError(f"message {actor}.{number} has another content")
    return actor, number


@dataclasses.dataclass
class Call:
    """One call of an actor.

    Attributes:
        ident: Of what it sends.
        result: What it returned, or "full", "closed", or an error in words.
        began, ended: In nanoseconds of one clock.
    """

    actor: int
    verb: str
    more: dict[str, Any]
    ident: Ident | None = None
    result: Any = None
    began: int = 0
    ended: int = 0

    @property
    def sent(self) -> bool:
        """Whether it has returned normally."""
        return not isinstance(self.result, str)

    def __str__(self) -> str:
        return f"actor {self.actor}: {self.verb} {self.more} {self.ident or ''} -> {self.result!r}"


@dataclasses.dataclass
class Seen:
    """What a client has done and seen.

    Attributes:
        received: Messages, in their order.
        close: Code of the close frame that came.
        ended: How the stream ended.
        said: How many messages it has sent, as far as they were handed to the system.
        left: It has closed or gone by itself.
    """

    index: int
    early: bool
    received: list[Ident] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    close: int | None = None
    ended: str | None = None
    said: int = 0
    left: bool = False


@dataclasses.dataclass
class Told:
    """What the engine has told of a session."""

    index: int
    session: Session
    connected: int = 0
    messages: list[Ident] = dataclasses.field(default_factory=list)
    disconnected: list[tuple[int, str | None]] = dataclasses.field(default_factory=list)
    late: int = 0


class Record:
    """All of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[Call] = []
        self.seen: dict[int, Seen] = {}
        self.told: dict[int, Told] = {}
        self.complaints: list[str] = []
        self.dropped: int | None = None
        # The engine was ended in order, after everybody had done everything, and all read.
        self.orderly = False

    def tell(self, session: Session) -> Told:
        """Of the session of a client, whose path has its number."""
        told = self.told.get(session.id)
        if told is None:
            with self.lock:
                told = self.told.setdefault(session.id, Told(int(session.path.rpartition("/")[2]), session))
        return told

    def session(self, client: int) -> Session | None:
        with self.lock:
            return next((told.session for told in self.told.values() if told.index == client), None)
