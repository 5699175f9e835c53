"""The ends that are tested: each API of each library, on each event loop and I/O backend, plain and over TLS."""

from __future__ import annotations

import dataclasses
import fnmatch

__all__ = ["ENDS", "LIBRARIES", "End", "chosen"]

LIBRARIES = ("wirespeed", "websockets")

# How an asyncio connection uses its socket, and on which loop.
WAYS = [("fd", "asyncio"), ("fd", "uvloop"), ("fd", "wirespeed"), ("transport", "asyncio"), ("transport", "uvloop")]


@dataclasses.dataclass(frozen=True)
class End:
    """One end under test; ``port`` and ``loop`` are ``None`` where there is no such choice."""

    role: str
    """``client`` or ``server``."""
    api: str
    """``sync``, ``asyncio``, ``listener``, ``uvicorn``, ``engine`` (its own echo), ``engine-handler``,
    ``engine-batches``."""
    port: str | None = None
    loop: str | None = None
    tls: bool = False

    @property
    def name(self) -> str:
        """The name of the end on the command line and of its report."""
        return "-".join(filter(None, [self.role, self.api, self.port, self.loop, "tls" if self.tls else None]))

    def agent(self, library: str) -> str:
        """The name of the end for the suite."""
        return f"{library}-{self.name}"


def both(role: str, api: str, port: str | None = None, loop: str | None = None) -> list[End]:
    return [End(role, api, port, loop, tls) for tls in (False, True)]


ENDS = [
    end
    for role, api, port, loop in [
        ("client", "sync", None, None),
        *(("client", "asyncio", port, loop) for port, loop in WAYS),
        ("client", "listener", "fd", "asyncio"),
        ("server", "sync", None, None),
        *(("server", "asyncio", port, loop) for port, loop in WAYS),
        ("server", "listener", "fd", "asyncio"),
        ("server", "uvicorn", None, "asyncio"),
        ("server", "uvicorn", None, "uvloop"),
        ("server", "engine", None, None),
        ("server", "engine-handler", None, None),
        ("server", "engine-batches", None, None),
    ]
    for end in both(role, api, port, loop)
]


def chosen(patterns: list[str], library: str) -> list[End]:
    """Returns the available ends whose names match one of the shell patterns."""
    known = [
        end
        for end in ENDS
        if library == "wirespeed" or (end.api in ("sync", "asyncio") and end.port != "transport" and not end.tls)
    ]
    return [end for end in known if any(fnmatch.fnmatch(end.name, pattern) for pattern in patterns)]
