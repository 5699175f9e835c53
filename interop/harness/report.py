"""A peer's report of a connection, and the expected report of messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from peers.contract import Digest

__all__ = ["Report", "seen"]


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of a peer. README.md has the contract. ``None``: the peer's API does not expose the value."""

    id: str
    opened: bool
    status: int | None = None
    body: str | None = None
    subprotocol: str | None = None
    extensions: str | None = None
    count: int = 0
    digest: str = ""
    code: int | None = None
    reason: str | None = None
    clean: bool | None = None
    error: str | None = None

    @property
    def messages(self) -> tuple[int, str]:
        """The number of messages and the hash of all of them."""
        return self.count, self.digest

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Report:
        """Makes a report of the fields that a peer printed."""
        return cls(**fields)


def seen(messages: Iterable[str | bytes]) -> tuple[int, str]:
    """Returns the ``Report.messages`` of a peer that received these messages."""
    digest = Digest()
    for message in messages:
        digest.add(message)
    return digest.count, str(digest)
