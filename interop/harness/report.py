"""What a peer saw of a connection, and what it should have seen of messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from peers.contract import Digest

__all__ = ["Report", "seen"]


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of a peer. README.md has the contract. ``None``: its API does not tell."""

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
        """How many messages there were, and the hash of them all."""
        return self.count, self.digest

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Report:
        """Make it of the fields that a peer printed."""
        return cls(**fields)


def seen(messages: Iterable[str | bytes]) -> tuple[int, str]:
    """``Report.messages`` of a peer that got these."""
    digest = Digest()
    for message in messages:
        digest.add(message)
    return digest.count, str(digest)
