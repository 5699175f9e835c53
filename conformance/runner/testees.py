"""What can be tested: a library by one of its APIs; for asyncio, over one way to the socket, on one event loop."""

from __future__ import annotations

import abc
import dataclasses

from .errors import Limit

__all__ = ["APIS", "ENGINES", "LIBRARIES", "LOOPS", "OPEN_TIMEOUT", "PORTS", "Choice", "Testee"]

LIBRARIES = ("wirespeed", "websockets")
APIS = ("sync", "asyncio")
# Servers only: its own echo, and a coroutine function that is called for each message.
ENGINES = ("engine", "engine-handler")
PORTS = ("fd", "transport")
LOOPS = ("asyncio", "uvloop", "wirespeed")

# Seconds for the opening handshake. The suite is slow while it writes what it has recorded.
OPEN_TIMEOUT = 30.0


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of them; ``port`` and ``loop`` are ``None`` where there is no such choice. ``tls`` is for engines."""

    library: str
    api: str
    port: str | None
    loop: str | None
    tls: bool = False

    @property
    def agent(self) -> str:
        """Its name in the reports."""
        loop = None if self.loop == "asyncio" else self.loop
        return "-".join(filter(None, [self.library, self.api, self.port, loop, "tls" if self.tls else None]))

    def make(self) -> Testee:
        if self.api == "sync":
            from .blocking import BlockingTestee

            return BlockingTestee(self.library)
        from .awaiting import AwaitingTestee

        return AwaitingTestee(self.library, self.port, self.loop or "asyncio")


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
