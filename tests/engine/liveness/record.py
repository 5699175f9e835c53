"""A record of calls and outcomes. Each list is written by one thread, or under the lock."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from wirespeed.engine import Session

__all__ = ["Call", "Ident", "Record", "Seen", "make", "read"]

Ident = tuple[int, int]
"""Sender of a message, and its number among those of the sender."""

_FILLING = "It was a bright cold day in April, and the clocks were striking thirteen. " * 1_000


def make(ident: Ident, size: int, *, text: bool) -> str | bytes:
    """Returns a message that contains its sender and length."""
    head = f"{ident[0]}.{ident[1]}.{size}|"
    message = head + _FILLING[: max(0, size - len(head))]
    return message if text else message.encode()


def read(message: str | bytes | bytearray) -> Ident:
    """Returns the sender of a message.

    Raises:
        ValueError: The message was changed.
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
        ident: Of the sent message.
        result: The returned value, or "full", "closed", or an error text.
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
        """Returns whether the call has returned normally."""
        return not isinstance(self.result, str)

    def __str__(self) -> str:
        return f"actor {self.actor}: {self.verb} {self.more} {self.ident or ''} -> {self.result!r}"


@dataclasses.dataclass
class Seen:
    """The actions and observations of a client.

    Attributes:
        received: Messages, in their order.
        close: Code of the close frame that arrived.
        ended: How the stream ended.
        said: The number of sent messages, as far as the system has taken them.
        left: Whether it has closed or disappeared by itself.
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
class SessionEvents:
    """The events of a session that the engine has reported."""

    index: int
    session: Session
    connected: int = 0
    messages: list[Ident] = dataclasses.field(default_factory=list)
    disconnected: list[tuple[int, str | None]] = dataclasses.field(default_factory=list)
    late: int = 0


class Record:
    """The complete record."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[Call] = []
        self.seen: dict[int, Seen] = {}
        self.told: dict[int, SessionEvents] = {}
        self.complaints: list[str] = []
        self.dropped: int | None = None
        # The engine was ended in order, after all actors had finished, and all clients read.
        self.orderly = False

    def tell(self, session: Session) -> SessionEvents:
        """Returns the events of the session of a client, whose path has its number."""
        told = self.told.get(session.id)
        if told is None:
            with self.lock:
                told = self.told.setdefault(session.id, SessionEvents(int(session.path.rpartition("/")[2]), session))
        return told

    def session(self, client: int) -> Session | None:
        with self.lock:
            return next((told.session for told in self.told.values() if told.index == client), None)
