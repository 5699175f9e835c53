"""The conversation of the two ends in every cell, and its invariants at the end.

The subject's side is a generator of calls, which serves blocking and awaited calls alike. The peer's side is a
function; it knows when the fault strikes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from interop.checks import describe
from interop.load_scaling import load_scaled

from .peer import Gone, Peer

__all__ = [
    "BACK",
    "HELLO",
    "MESSAGE",
    "OPENING",
    "RECEIVING",
    "SOME",
    "Log",
    "adrive",
    "converse",
    "drive",
    "talk",
    "talk_to_echo",
]

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

Call = tuple[Any, ...]


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
        said_to_be_fine: Whether the end was reported as a clean one.
        said_to_be_lost: Whether it was notified that something was not sent.
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
    said_to_be_fine: bool = False
    said_to_be_lost: bool = False
    finished: bool = False
    watched: list[Any] = dataclasses.field(default_factory=list)


def _submit(log: Log, message: bytes) -> Generator[Call, Any, None]:
    log.submitted.append(message)
    yield ("send", message)
    log.accepted.append(message)


def _receive(log: Log) -> Generator[Call, Any, None]:
    log.received.append((yield ("recv",)))


def _speak(stage: str, log: Log, big: Sequence[bytes]) -> Generator[Call, Any, None]:
    yield ("open",)
    log.opened = True
    yield from _submit(log, HELLO)
    yield from _receive(log)
    if stage in RECEIVING:
        yield from _receive(log)
    elif stage == "sending":
        for message in big:
            yield from _submit(log, message)
    elif stage == "forget":
        yield ("forget",)
    elif stage == "closed":
        yield ("close",)
        yield ("use",)


def converse(
    stage: str,
    log: Log,
    documented: tuple[type[BaseException], ...],
    big: Sequence[bytes] = BIG,
    again: tuple[type[BaseException], ...] = (),
) -> Generator[Call, Any, None]:
    """The subject's side.

    Args:
        stage: When the fault strikes; ``"forget"`` where the connection is dropped.
        log: Records the events.
        documented: Exceptions that calls may raise when a connection fails.
        big: The message for a peer that does not read.
        again: Exceptions after which closing continues when it is called again.
    """
    try:
        yield from _speak(stage, log, big)
    except documented as exc:
        log.error = describe(exc)
    except GeneratorExit:
        raise
    except BaseException as exc:
        log.wrong = describe(exc)
    if log.opened and stage != "forget":
        try:
            try:
                yield ("close",)
            except again as exc:
                log.error = describe(exc)
                yield ("close",)
            log.code, log.said_to_be_fine = yield ("ending",)
        except GeneratorExit:
            raise
        except BaseException as exc:
            log.wrong = f"close: {describe(exc)}"
    log.finished = True


class _Clock:
    """Measures a call, and complains when it took too long."""

    def __init__(self, log: Log, call: Call) -> None:
        self.log = log
        self.name = call[0]
        self.began = time.monotonic()

    def stop(self) -> None:
        took = time.monotonic() - self.began
        if took > load_scaled(CALL):
            self.log.wrong = f"{self.name} took {took:.1f} s"


def drive(talking: Generator[Call, Any, None], app: Any, log: Log) -> None:
    """Makes the calls on an application with blocking calls."""
    resume: Callable[[Any], Call] = talking.send
    value: Any = None
    while True:
        try:
            call = resume(value)
        except StopIteration:
            return
        clock = _Clock(log, call)
        try:
            resume, value = talking.send, getattr(app, call[0])(*call[1:])
        except BaseException as exc:
            resume, value = talking.throw, exc
        clock.stop()


async def adrive(talking: Generator[Call, Any, None], app: Any, log: Log) -> None:
    """Makes the calls on an application with awaited calls. Cancellation ends it."""
    resume: Callable[[Any], Call] = talking.send
    value: Any = None
    while True:
        try:
            call = resume(value)
        except StopIteration:
            return
        clock = _Clock(log, call)
        try:
            resume, value = talking.send, await getattr(app, call[0])(*call[1:])
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            resume, value = talking.throw, exc
        clock.stop()


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
