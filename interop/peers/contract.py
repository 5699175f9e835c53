"""The contract in README.md, for peers in Python and for the tests: tasks, jobs, reports, and the ports of servers.

It knows no library.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import ssl
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

__all__ = [
    "HEARTBEAT",
    "LIMIT",
    "PATIENCE",
    "REFUSAL",
    "SUBPROTOCOLS",
    "UNLIMITED",
    "Digest",
    "Job",
    "Record",
    "Task",
    "announce",
    "client_context",
    "jobs",
    "mode",
    "server_context",
    "until_input_ends",
]

SUBPROTOCOLS = ["superchat", "chat"]
"""Subprotocols that a server speaks, best first."""

LIMIT = 1000
"""Bytes of a message that a peer takes in its variant ``limited``."""
UNLIMITED = 64 * 2**20
"""And in the others."""
HEARTBEAT = 0.1
"""Seconds between the pings of a peer in its variant ``keepalive``, where it can ping so often."""
PATIENCE = 1.0
"""Seconds in which it wants to have its pongs."""
REFUSAL = "no entry\n"
"""Body of the response 403."""


class Digest:
    """A hash of messages that covers their order, types, boundaries and content."""

    def __init__(self) -> None:
        self.count = 0
        self._last = b""

    def add(self, message: str | bytes) -> None:
        """Take the next message: SHA-256 of the hash so far, the letter t or b, the message."""
        kind, data = (b"t", message.encode()) if isinstance(message, str) else (b"b", bytes(message))
        self._last = hashlib.sha256(self._last + kind + data).digest()
        self.count += 1

    def __str__(self) -> str:
        return self._last.hex()


@dataclasses.dataclass(frozen=True)
class Task:
    """The task that the URI gives the peer: the word of its path, and the query."""

    name: str
    query: dict[str, str]

    @classmethod
    def parse(cls, target: str) -> Task:
        """Parse a URI or the target of a request."""
        url = urllib.parse.urlsplit(target)
        return cls(url.path.strip("/"), dict(urllib.parse.parse_qsl(url.query)))

    def number(self, name: str) -> int:
        """Returns a number of the query, 0 by default."""
        return int(self.query.get(name, "0"))

    def pieces(self, message: Any) -> list[Any] | None:
        """Returns the fragments in which a message is to be sent back; ``None``: not fragmented."""
        size = self.number("cut")
        return [message[at : at + size] for at in range(0, len(message), size)] if size else None


@dataclasses.dataclass(frozen=True)
class Job:
    """A connection that a client is to open: a line of its input."""

    uri: str
    variant: str
    subprotocols: list[str]
    headers: list[tuple[str, str]]

    @classmethod
    def parse(cls, line: str) -> Job:
        fields = urllib.parse.parse_qs(line.strip())
        headers = [tuple(header.split(": ", 1)) for header in fields.get("header", [])]
        headers += [("Cookie", cookie) for cookie in fields.get("cookie", [])]
        return cls(fields["uri"][0], fields["variant"][0], fields.get("subprotocol", []), headers)  # type: ignore[arg-type]

    @property
    def task(self) -> Task:
        return Task.parse(self.uri)


class Record:
    """A peer's record of one connection. ``emit`` prints it."""

    def __init__(self, task: Task) -> None:
        self.fields: dict[str, Any] = {"id": task.query.get("id"), "opened": False, "code": None, "reason": None}
        self._digest = Digest()

    def opened(self, subprotocol: str | None, extensions: str | None) -> None:
        self.fields.update(opened=True, subprotocol=subprotocol, extensions=extensions)

    def refused(self, status: int | None, body: str | None) -> None:
        self.fields.update(status=status, body=body)

    def message(self, message: str | bytes) -> None:
        self._digest.add(message)

    def closed(self, code: int | None, reason: str | None) -> None:
        self.fields.update(code=None if code is None else int(code), reason=reason)

    def failed(self, error: BaseException | str) -> None:
        self.fields["error"] = error if isinstance(error, str) else f"{type(error).__name__}: {error}"

    def emit(self) -> None:
        _print({**self.fields, "count": self._digest.count, "digest": str(self._digest)})


_OUTPUT = threading.Lock()


def _print(fields: dict[str, Any]) -> None:
    with _OUTPUT:
        print(json.dumps(fields), flush=True)


def announce(ports: dict[str, int]) -> None:
    """Prints the port of each variant of a server."""
    _print({"ports": ports})


def jobs() -> Iterator[Job]:
    """Yields the jobs of a client until its input ends."""
    return map(Job.parse, sys.stdin)


def until_input_ends(stop: Callable[[], object]) -> None:
    """Calls a function, from another thread, when the input of a server ends."""

    def wait() -> None:
        sys.stdin.read()
        stop()

    threading.Thread(target=wait, daemon=True).start()


def mode() -> str:
    """The role of the program: ``client`` or ``server``."""
    return sys.argv[1]


def client_context() -> ssl.SSLContext:
    """A context that trusts the authority of the tests."""
    return ssl.create_default_context(cafile=os.environ["INTEROP_CA"])


def server_context() -> ssl.SSLContext:
    """A context with the certificate of the tests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["INTEROP_CERT"], os.environ["INTEROP_KEY"])
    return context
