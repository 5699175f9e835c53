"""What a library can do that others cannot: compression, an exception of its own for a closed connection, keepalive."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from models.content import ContentError

__all__ = ["Abilities", "Patience", "Watched", "add_arguments", "check_deflate"]


@dataclass(frozen=True)
class Patience:
    """How soon a dead peer shall be noticed, in seconds.

    Attributes:
        interval: from the opening, or the last message, to the ping.
        timeout: from the ping to when its answer is given up; also for the closing handshake that a library then tries.
    """

    interval: float
    timeout: float


@dataclass(frozen=True)
class Watched:
    """An open connection whose library sends pings of its own.

    Attributes:
        connection: what must be kept for the connection to stay open.
        noticed: returns, or raises, what the library tells its caller at the end; for asyncio an awaitable of that.
        tells: whether this, returned or raised, says that the peer is dead.
    """

    connection: object
    noticed: Callable[[], Any]
    tells: Callable[[object], bool]


@dataclass(frozen=True)
class Abilities:
    """What a library can do beside; what is missing here, its peer does not answer.

    Attributes:
        deflate: connects as `connect` does, but with permessage-deflate, and for text: `send` takes a str, `recv`
            returns what `encode` makes of it.
        closed: the exception that its documentation names for a closed connection, MODULE:NAME, of `recv` and `send`
            each.
        watch: connects with the library's own keepalive; takes a URL, the CA or None, and a `Patience`.
        serve: starts a server that echoes, without compression, keepalive and limits, on this event loop or in threads
            of its own; returns its URL and what must be kept; for asyncio an awaitable of that.
        at_once: connects as `connect` does, but so that `send` hands each message to the system, for a library that
            gathers what is sent otherwise.
    """

    deflate: Callable[[str, str | None, int], Any] | None = None
    closed: Mapping[str, str] = field(default_factory=dict)
    watch: Callable[[str, str | None, Patience], Any] | None = None
    serve: Callable[[], Any] | None = None
    at_once: Callable[[str, str | None, int], Any] | None = None

    def workloads(self) -> tuple[str, ...]:
        """Returns the workloads that need these abilities, those of memory not among them."""
        return (
            *(("deflate-round-trip", "deflate-send") if self.deflate is not None else ()),
            *(f"closed-{call}" for call in self.closed),
            *(("dead",) if self.watch is not None else ()),
            *(("serving-sleep", "serving-compute") if self.serve is not None else ()),
        )

    def closed_error(self, call: str) -> type[Exception]:
        """Imports the exception for a call on a closed connection."""
        module, _, name = self.closed[call].partition(":")
        error: type[Exception] = getattr(importlib.import_module(module), name)
        return error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds to a peer's command line what only these workloads need."""
    parser.add_argument("--interval", type=float, default=0.2, help="seconds until a keepalive ping")
    parser.add_argument("--timeout", type=float, default=0.2, help="seconds until its answer is given up")


def check_deflate(extensions: str | None) -> None:
    """Checks the extensions of a server's answer: without compression there is nothing to measure."""
    if "permessage-deflate" not in (extensions or ""):
        raise ContentError("the server did not agree to permessage-deflate")
