"""Codecs: the functions that decode the messages of a route."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_origin

from .._connection import JSON, MSGPACK

__all__ = ["Decode", "Decoders", "decoders"]

Decode: TypeAlias = Callable[[bytes], Any]

Decoders: TypeAlias = tuple[Decode | None, Decode | None]
"""The decoders of text and of binary messages; ``None``: such messages are invalid."""


def decoders(codec: Any) -> Decoders | None:
    """Return the decoders of a codec; ``None``: messages are not decoded.

    Args:
        codec: As for :meth:`Engine.route`.

    Raises:
        ValueError: There is no codec of that name.
        TypeError: msgspec does not support the type.
        ImportError: The codec needs msgspec, which is not installed; the text says how to install it.
    """
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec == "json":
            return JSON.decoder(Any), JSON.decoder(Any)
        if codec == "msgpack":
            return None, MSGPACK.decoder(Any)
        raise ValueError(f'codec must be None, "json", "msgpack", a type or a function, not {codec!r}')
    # Aliases such as `Annotated[bytes, ...]` have the attributes of their types.
    if not isinstance(codec, type) and get_origin(codec) is None:
        decode = getattr(codec, "decode", None)
        if callable(decode):
            return decode, decode
        if inspect.isroutine(codec):
            return codec, codec
    # It is a type, for which JSON and MessagePack use the same field names and values.
    return JSON.decoder(codec), MSGPACK.decoder(codec)
