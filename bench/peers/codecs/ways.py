"""The ways from a document to a message and back: the methods of wirespeed, or `send` and `recv` with another codec.

Each is set up for speed as its documentation says: encoders and decoders are made once; what takes bytes gets bytes.
All write JSON without blanks, so that all send the same bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from models.program import Library

__all__ = ["WAYS", "Bound", "Way"]

WIRESPEED = Library("wirespeed", "wirespeed")
MSGSPEC = Library("msgspec", "msgspec")


@dataclass(frozen=True)
class Bound:
    """A way on an open connection.

    Attributes:
        send: encodes a document and sends it.
        recv: receives a message and decodes it.
    """

    send: Callable[[Any], Awaitable[None]]
    recv: Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
        libraries: what must be installed.
        bind: returns it on a connection of wirespeed.
    """

    libraries: tuple[Library, ...]
    bind: Callable[[Any], Bound]


def _own_json(ws: Any) -> Bound:
    return Bound(ws.send_json, ws.recv_json)


def _own_msgpack(ws: Any) -> Bound:
    return Bound(ws.send_msgpack, ws.recv_msgpack)


def _json(ws: Any) -> Bound:
    import json

    # `json.dumps` makes an encoder for each call, if it gets separators.
    encode, decode = json.JSONEncoder(separators=(",", ":")).encode, json.loads

    async def send(document: Any) -> None:
        await ws.send(encode(document))

    async def recv() -> Any:
        return decode(await ws.recv())

    return Bound(send, recv)


def _orjson(ws: Any) -> Bound:
    import orjson

    return _as_text(ws, orjson.dumps, orjson.loads)


def _msgspec_json(ws: Any) -> Bound:
    import msgspec

    return _as_text(ws, msgspec.json.Encoder().encode, msgspec.json.Decoder().decode)


def _msgpack(ws: Any) -> Bound:
    import msgpack

    return _as_binary(ws, msgpack.Packer().pack, msgpack.unpackb)


def _msgspec_msgpack(ws: Any) -> Bound:
    import msgspec

    return _as_binary(ws, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode)


def _as_text(ws: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Bound:
    """Binds a codec whose JSON is bytes, in both directions: nobody makes a str of them."""

    async def send(document: Any) -> None:
        await ws.send(encode(document), text=True)

    async def recv() -> Any:
        return decode(await ws.recv(decode=False))

    return Bound(send, recv)


def _as_binary(ws: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Bound:
    async def send(document: Any) -> None:
        await ws.send(encode(document))

    async def recv() -> Any:
        return decode(await ws.recv())

    return Bound(send, recv)


WAYS = {
    "send-json": Way((WIRESPEED, MSGSPEC), _own_json),
    "json": Way((WIRESPEED, Library("json", None)), _json),
    "orjson": Way((WIRESPEED, Library("orjson", "orjson")), _orjson),
    "msgspec-json": Way((WIRESPEED, MSGSPEC), _msgspec_json),
    "send-msgpack": Way((WIRESPEED, MSGSPEC), _own_msgpack),
    "msgpack": Way((WIRESPEED, Library("msgpack", "msgpack")), _msgpack),
    "msgspec-msgpack": Way((WIRESPEED, MSGSPEC), _msgspec_msgpack),
}
"""By style."""
