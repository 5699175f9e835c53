"""The ways from a document to a message and back: the methods of wirespeed, or `send` and `recv` with another codec.

Each is set up for speed as its documentation says: encoders and decoders are made once; what takes bytes gets bytes.
All write JSON without blanks, so that all send the same bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.program import Library

__all__ = ["WAYS", "Way"]

WIRESPEED = Library("wirespeed", "wirespeed")

Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""What encodes a document, and what decodes it."""


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        form: "json" or "msgpack".
        library: what must be installed beside wirespeed.
        codec: makes encoder and decoder of that library; None: wirespeed has methods for it.
    """

    form: str
    library: Library
    codec: Callable[[Any], Codec] | None = None

    def load(self) -> Codec:
        """Imports the library and returns encoder and decoder."""
        assert self.codec is not None
        return self.codec(importlib.import_module(self.library.module))

    def bind(self, ws: Any) -> Codec:
        """Returns what sends a document, and what receives one, on a connection of wirespeed."""
        if self.codec is None:
            return getattr(ws, f"send_{self.form}"), getattr(ws, f"recv_{self.form}")
        encode, decode = self.load()
        # JSON in bytes is never converted to str, in either direction.
        if self.form == "json" and isinstance(encode({}), bytes):

            async def send(document: Any) -> None:
                await ws.send(encode(document), text=True)

            async def recv() -> Any:
                return decode(await ws.recv(decode=False))
        else:

            async def send(document: Any) -> None:
                await ws.send(encode(document))

            async def recv() -> Any:
                return decode(await ws.recv())

        return send, recv


MSGSPEC = Library("msgspec", "msgspec")
WAYS = {
    "send-json": Way("json", MSGSPEC),
    # `json.dumps` makes an encoder for each call, if it gets separators.
    "json": Way(
        "json", Library("json", None), lambda json: (json.JSONEncoder(separators=(",", ":")).encode, json.loads)
    ),
    "orjson": Way("json", Library("orjson", "orjson"), lambda orjson: (orjson.dumps, orjson.loads)),
    "msgspec-json": Way("json", MSGSPEC, lambda one: (one.json.Encoder().encode, one.json.Decoder().decode)),
    "send-msgpack": Way("msgpack", MSGSPEC),
    "msgpack": Way("msgpack", Library("msgpack", "msgpack"), lambda one: (one.Packer().pack, one.unpackb)),
    "msgspec-msgpack": Way(
        "msgpack", MSGSPEC, lambda one: (one.msgpack.Encoder().encode, one.msgpack.Decoder().decode)
    ),
}
"""By style."""
