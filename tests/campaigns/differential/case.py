"""A case: options and steps. It can be printed, written as JSON and read again; it knows no implementation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

Step = tuple[Any, ...]
"""What happens, as ``wirespeed-sans-io --help`` has it; bytes are bytes."""


@dataclasses.dataclass(frozen=True)
class Deflate:
    """Parameters of permessage-deflate, from our side.

    Attributes:
        local_bits: The window of our compressor, 8 to 15.
        remote_bits: The window of the peer's compressor.
        local_reset: Our compressor is reset for each message.
        remote_reset: The peer's compressor is reset for each message.
    """

    local_bits: int = 15
    remote_bits: int = 15
    local_reset: bool = False
    remote_reset: bool = False
    level: int = 6
    memory_level: int = 5
    threshold: int = 32


@dataclasses.dataclass(frozen=True)
class Case:
    """One connection.

    Attributes:
        side: Our end.
        fragments: Whether messages are delivered frame by frame.
        message_size: The limit of a message, in bytes.
        fragment_size: The limit of a frame.
        most_fragments: The limit of fragments of a message.
    """

    side: str
    steps: tuple[Step, ...]
    fragments: bool = False
    message_size: int | None = None
    fragment_size: int | None = None
    most_fragments: int | None = None
    deflate: Deflate | None = None

    def with_steps(self, steps: Iterable[Step]) -> Case:
        return dataclasses.replace(self, steps=tuple(steps))

    def dump(self) -> str:
        value = dataclasses.asdict(self)
        value["steps"] = [
            [item.hex() if isinstance(item, bytes) else item for item in step]
            + [[at for at, item in enumerate(step) if isinstance(item, bytes)]]
            for step in self.steps
        ]
        return json.dumps(value)

    @classmethod
    def load(cls, text: str) -> Case:
        value = json.loads(text)
        steps = []
        for *items, binary in value.pop("steps"):
            steps.append(tuple(bytes.fromhex(item) if at in binary else item for at, item in enumerate(items)))
        deflate = value.pop("deflate")
        return cls(steps=tuple(steps), deflate=Deflate(**deflate) if deflate else None, **value)

    def as_request(self) -> dict[str, Any]:
        """Returns the input of ``wirespeed-sans-io``."""
        return {
            "do": "connection",
            "side": self.side,
            "delivery": "fragments" if self.fragments else "messages",
            "message_size": self.message_size,
            "fragment_size": self.fragment_size,
            "fragments": self.most_fragments,
            "deflate": dataclasses.asdict(self.deflate) if self.deflate else None,
            "steps": [[item.hex() if isinstance(item, bytes) else item for item in step] for step in self.steps],
        }

    def __str__(self) -> str:
        options = [
            f"{field.name}={value}"
            for field in dataclasses.fields(self)
            if field.name not in ("side", "steps") and (value := getattr(self, field.name)) not in (None, False)
        ]
        lines = [f"{self.side} {' '.join(options)}"]
        for number, step in enumerate(self.steps):
            shown = [item.hex(" ") if isinstance(item, bytes) else repr(item) for item in step[1:]]
            lines.append(f"  {number}: {step[0]} {' '.join(shown)}")
        return "\n".join(lines)


def received(case: Case) -> bytes:
    """Returns all bytes that our end receives."""
    return b"".join(step[1] for step in case.steps if step[0] == "receive")
