"""The record of a run: the calls, and the messages of each connection. Executors write it, ``oracle`` reads it."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from . import payload
from .payload import Damaged, Ident
from .peer import Peer
from .plan import RECEIVING, Step

# The actor that receives the remaining messages.
DIRECTOR = -1


class Poke(Exception):
    """The exception that the signal handler of a run raises."""


@dataclasses.dataclass
class Call:
    """One call of an actor.

    Attributes:
        order: Its place among all calls.
        actor: The calling actor.
        step: The step.
        idents: The messages that were passed to it so far.
        result: "running", "returned", "cancelled", "interrupted" or "raised".
        error: The exception as text.
        kinds: Names of its class and their bases.
        state: State of the connection when it was raised.
        cancelling: Whether it was cancelled.
    """

    order: int
    actor: int
    step: Step
    idents: list[Ident] = dataclasses.field(default_factory=list)
    result: str = "running"
    error: str = ""
    kinds: frozenset[str] = frozenset()
    state: str = ""
    cancelling: bool = False

    @property
    def verb(self) -> str:
        return self.step.verb

    @property
    def receives(self) -> bool:
        return self.verb in RECEIVING

    def raised(self, exc: BaseException, state: str) -> None:
        """Keeps the description of an exception, and not the exception: its traceback would keep the connection."""
        self.kinds = frozenset(kind.__name__ for kind in type(exc).__mro__)
        self.error = f"{type(exc).__name__}: {exc}"
        if exc.__cause__ is not None:
            self.error += f" (because of {type(exc.__cause__).__name__}: {exc.__cause__})"
        self.state = state
        self.result = "interrupted" if isinstance(exc, Poke) else "raised"

    def __str__(self) -> str:
        sent = f", messages {' '.join(map(str, self.idents))}" if self.idents else ""
        error = f": {self.error} while {self.state}" if self.error else ""
        return f"call {self.order}, {self.step}{sent}, {self.result}{error}"


class Link:
    """One connection and its peer.

    Attributes:
        ws: The connection, ``None`` once the run is over.
        delivered: Received messages and their receivers, in this order.
        dropped: Messages that were abandoned in the middle of ``recv_streaming``.
        lost: The number of further messages that an interrupted call may have lost.
        problems: Errors of single messages.
        aborted: Whether this end has cut the connection.
        closed: Whether this end has begun to close it.
        refused: Why nothing could be received the last time.
        may_tear: Whether an exception of a signal handler may end it: inside an ``ssl.SSLContext``.
    """

    def __init__(self, index: int, ws: Any, peer: Peer, *, may_tear: bool = False) -> None:
        self.index = index
        self.ws = ws
        self.peer = peer
        self.delivered: list[tuple[int, Ident]] = []
        self.dropped: set[Ident] = set()
        self.lost = 0
        self.problems: list[str] = []
        self.aborted = False
        self.closed = False
        self.refused = ""
        self.may_tear = may_tear

    @property
    def state(self) -> str:
        return str(self.ws.state.name)

    def take(self, actor: int, message: Any) -> None:
        """Records a received message."""
        try:
            self.delivered.append((actor, payload.read(message)))
        except Damaged as exc:
            self.problems.append(f"received: {exc}")

    def take_parts(self, actor: int, parts: list[Any], *, complete: bool) -> None:
        """Records the received fragments of a message."""
        if not parts:
            return
        message = "".join(parts) if isinstance(parts[0], str) else b"".join(parts)
        if complete:
            self.take(actor, message)
        else:
            try:
                self.dropped.add(payload.read(message, whole=False))
            except Damaged:
                self.lost += 1

    @property
    def outstanding(self) -> int:
        """Returns how many messages of the peer were not received."""
        return len(self.peer.sent) - len(self.delivered) - len(self.dropped) - self.lost


@dataclasses.dataclass
class Record:
    """The record of a whole run.

    Attributes:
        links: The connections.
        calls: All calls, in their order.
        complaints: Errors found while it ran, which ended it.
        afterwards: Errors found once the connections were closed.
        single: Whether one actor alone has received.
        lock: Held while a call is added by threads.
    """

    links: list[Link] = dataclasses.field(default_factory=list)
    calls: list[Call] = dataclasses.field(default_factory=list)
    complaints: list[str] = dataclasses.field(default_factory=list)
    afterwards: list[str] = dataclasses.field(default_factory=list)
    single: bool = True
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def of(self, link: Link) -> list[Call]:
        return [call for call in self.calls if call.step.link == link.index or call.verb == "broadcast"]
