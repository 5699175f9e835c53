"""The interface of a client under test, and which one an end is."""

from __future__ import annotations

import abc

from .certificate import Certificate
from .ends import End
from .errors import Limit

__all__ = ["OPEN_TIMEOUT", "Testee", "make"]

# Seconds for the opening handshake. The suite is slow while it writes what it has recorded.
OPEN_TIMEOUT = 30.0


class Testee(abc.ABC):
    """A client under test. Each method makes one connection, and raises RunError when it takes longer than it may."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """What went wrong beside the calls: exceptions that nobody was there to get."""

    @abc.abstractmethod
    def ask(self, uri: str, limit: Limit) -> str:
        """Return the first message."""

    @abc.abstractmethod
    def echo(self, uri: str, limit: Limit) -> None:
        """Echo everything until the connection is closed. How it is closed is for the suite to judge."""

    @abc.abstractmethod
    def drain(self, uri: str, limit: Limit) -> None:
        """Receive until the connection is closed. The server may take the whole time to answer the handshake."""

    def close(self) -> None:  # noqa: B027 - not all have something to close
        """Release what connections share."""


def make(end: End, library: str, certificate: Certificate | None) -> Testee:
    """The client of an end; with a certificate, it trusts its authority."""
    if end.api == "sync":
        from .blocking import BlockingTestee

        return BlockingTestee(library, certificate)
    from .awaiting import AwaitingTestee, ListeningTestee

    kind = ListeningTestee if end.api == "listener" else AwaitingTestee
    return kind(library, end.port if library == "wirespeed" else None, end.loop or "asyncio", certificate)
