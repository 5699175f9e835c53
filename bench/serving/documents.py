"""What a server decodes messages to: the documents of the load generator (`crates/bench/src/load/content.rs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["decoder"]


def decoder(form: str) -> Callable[[bytes], Any]:
    """Returns what makes an object with an attribute `number` of a message of that form."""
    # Who does not decode has not loaded it.
    import msgspec

    class Update(msgspec.Struct):
        kind: str
        number: int
        tags: list[str]
        text: str
        value: float

    return {"json-bytes": msgspec.json, "msgpack": msgspec.msgpack}[form].Decoder(Update).decode
