"""The conversation of the two ends in every cell.

The subject's side is an async function, which serves blocking and awaited calls alike: ``campaigns.common.calls``. The
peer's side is a function; it knows when the fault strikes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from support.checks import describe
from support.load_scaling import load_scaled

from .peer import Gone, Peer

HELLO = b"hello\n"
BACK = b"hello back\n"
# Two bytes of length in its header, and a newline only at its end: streams are read by lines.
MESSAGE = b"0123456789" * 60 + b"\n"
# More than the system buffers for a peer that does not read.
BIG = [b"%03d" % number + bytes(512 * 1024) + b"\n" for number in range(24)]
# Where a network is slow.
SOME = [b"%03d" % number + bytes(64 * 1024) + b"\n" for number in range(4)]

# Seconds that any call may take: far more than the longest time limit of a cell.
CALL = 20.0

OPENING = ("dialling", "tls-hello", "tls-answer", "tunnel", "request", "response")
RECEIVING = ("idle", "header", "payload", "fragments")


@dataclasses.dataclass
class Log:
    """The observations of the subject's application.

    Attributes:
        opened: Whether it had a connection.
        received: Received messages, in order.
        submitted: Messages passed to send calls.
        accepted: Messages whose send call returned.
        error: The documented exception that ended the conversation, as text.
        wrong: Undocumented behaviour.
        code: The close code, when it was over.
        reported_clean: Whether the end was reported as a clean one.
        reported_loss: Whether it was notified that something was not sent.
        finished: Whether it has finished.
        watched: Weak references to objects that must be freed when everything is over.
    """

    opened: bool = False
    received: list[bytes] = dataclasses.field(default_factory=list)
    submitted: list[bytes] = dataclasses.field(default_factory=list)
    accepted: list[bytes] = dataclasses.field(default_factory=list)
    error: str | None = None
    wrong: str | None = None
    code: int | None = None
    reported_clean: bool = False
    reported_loss: bool = False
    finished: bool = False
    watched: list[Any] = dataclasses.field(default_factory=list)


class Subject(Protocol):
    """The calls of a conversation, on a connection of any API."""

    log: Log

    async def open(self) -> None: ...

    async def recv(self) -> bytes: ...

    async def send(self, message: bytes) -> None: ...

    async def close(self) -> None: ...

    async def ending(self) -> tuple[int | None, bool]:
        """Returns the close code, and whether the end was reported as a clean one."""
        ...

    async def forget(self) -> None:
        """Drops the connection when it is time."""

    async def use(self) -> None:
        """Makes every call on a closed connection."""


class _Clock:
    """Makes calls of an application, and complains when one took too long."""

    def __init__(self, app: Subject) -> None:
        self.app = app
        self.log = app.log

    async def call(self, name: str, *arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return await getattr(self.app, name)(*arguments)
        finally:
            took = time.monotonic() - began
            if took > load_scaled(CALL):
                self.log.wrong = f"{name} took {took:.1f} s"

    async def send(self, message: bytes) -> None:
        self.log.submitted.append(message)
        await self.call("send", message)
        self.log.accepted.append(message)

    async def receive(self) -> None:
        self.log.received.append(await self.call("recv"))

    async def speak(self, stage: str, big: Sequence[bytes]) -> None:
        await self.call("open")
        self.log.opened = True
        await self.send(HELLO)
        await self.receive()
        if stage in RECEIVING:
            await self.receive()
        elif stage == "sending":
            for message in big:
                await self.send(message)
        elif stage == "forget":
            await self.call("forget")
        elif stage == "closed":
            await self.call("close")
            await self.call("use")

    async def end(self, again: tuple[type[BaseException], ...]) -> None:
        try:
            await self.call("close")
        except again as exc:
            self.log.error = describe(exc)
            await self.call("close")
        self.log.code, self.log.reported_clean = await self.call("ending")


async def converse(
    app: Subject,
    stage: str,
    documented: tuple[type[BaseException], ...],
    big: Sequence[bytes] = BIG,
    again: tuple[type[BaseException], ...] = (),
) -> None:
    """The subject's side.

    Args:
        app: The subject.
        stage: When the fault strikes; ``"forget"`` where the connection is dropped.
        documented: Exceptions that calls may raise when a connection fails.
        big: The message for a peer that does not read.
        again: Exceptions after which closing continues when it is called again.
    """
    log, clock = app.log, _Clock(app)
    try:
        await clock.speak(stage, big)
    except documented as exc:
        log.error = describe(exc)
    except (GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as exc:
        log.wrong = describe(exc)
    if log.opened and stage != "forget":
        try:
            await clock.end(again)
        except (GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as exc:
            log.wrong = f"close: {describe(exc)}"
    log.finished = True


def _send_struck(peer: Peer, stage: str, strike: Callable[[], None]) -> None:
    """Sends a message at a stage of receiving, during which the fault strikes."""
    match stage:
        case "idle":
            strike()
            peer.send(MESSAGE)
        case "header":
            # In the middle of the length; a client's frame has its mask behind it.
            peer.send_in_two(MESSAGE, 3, strike)
        case "payload":
            peer.send_in_two(MESSAGE, len(MESSAGE) // 2, strike)
        case "fragments":
            peer.send_in_fragments(MESSAGE, strike)


def talk(
    peer: Peer, stage: str, strike: Callable[[], None], *, hold: Callable[[], None], stuck: Callable[[], None]
) -> None:
    """The peer's side, up to the end of the connection.

    Args:
        peer: The peer, before the opening handshake.
        stage: When the fault strikes; in the opening handshake it does so by itself.
        strike: Triggers the fault, and returns when the peer should continue.
        hold: Prevents the subject's data from being read; the fault ends that.
        stuck: Waits until the subject can send no more.
    """
    with contextlib.suppress(Gone):
        peer.open()
        peer.receive()
        if stage == "sending":
            hold()
        peer.send(BACK)
        if stage in RECEIVING:
            _send_struck(peer, stage, strike)
        elif stage == "sending":
            stuck()
            strike()
        elif stage == "closing":
            peer.before_close = strike
        while True:
            peer.receive()
    if stage == "closed":
        strike()
    peer.read_to_end()


def talk_to_echo(peer: Peer, stage: str, strike: Callable[[], None]) -> None:
    """The peer's side where the server is an echo without an application."""
    with contextlib.suppress(Gone):
        peer.open()
        peer.send(HELLO)
        peer.receive()
        if stage in RECEIVING:
            _send_struck(peer, stage, strike)
            peer.receive()
        peer.begin_close()
        if stage == "closing":
            strike()
        while True:
            peer.receive()
    peer.read_to_end()
