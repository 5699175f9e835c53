"""The interface of a client under test, and the factory of these clients."""

from __future__ import annotations

import abc

from .certificate import Certificate
from .ends import End
from .errors import Limit

__all__ = ["OPEN_TIMEOUT", "Testee", "make"]

# Seconds for the opening handshake. The suite is slow while it writes its records.
OPEN_TIMEOUT = 30.0


class Testee(abc.ABC):
    """A client under test. Each method makes one connection, and raises RunError when its time limit passes."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """Exceptions that were raised outside of calls."""

    @abc.abstractmethod
    def ask(self, uri: str, limit: Limit) -> str:
        """Returns the first message."""

    @abc.abstractmethod
    def echo(self, uri: str, limit: Limit) -> None:
        """Echoes every message until the connection is closed. The suite judges how it is closed."""

    @abc.abstractmethod
    def drain(self, uri: str, limit: Limit) -> None:
        """Receives until the connection is closed. The server may take the whole time limit to answer the handshake."""

    def close(self) -> None:  # noqa: B027 - not all have something to close
        """Releases the resources that connections share."""


def make(end: End, library: str, certificate: Certificate | None) -> Testee:
    """Returns the client of an end; with a certificate, the client trusts its authority."""
    if end.api == "sync":
        from .blocking import BlockingTestee

        return BlockingTestee(library, certificate)
    from .awaiting import AwaitingTestee, ListeningTestee

    kind = ListeningTestee if end.api == "listener" else AwaitingTestee
    return kind(library, end.port if library == "wirespeed" else None, end.loop or "asyncio", certificate)
