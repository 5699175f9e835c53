"""What messages of a route are decoded by."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_origin

from .._connection.codec import JSON, MSGPACK

__all__ = ["Decode", "Decoders", "decoders"]

Decode: TypeAlias = Callable[[bytes], Any]

Decoders: TypeAlias = tuple[Decode | None, Decode | None]
"""Of text, and of binary messages; ``None``: such messages are not valid."""


def decoders(codec: Any) -> Decoders | None:
    """Return what a codec stands for; ``None``: messages are not decoded.

    Args:
        codec: As for :meth:`Engine.route`.

    Raises:
        ValueError: There is no codec of that name.
        TypeError: msgspec does not know such types.
        ImportError: There is no msgspec, and it needs that; the text says what to install.
    """
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec == "json":
            return JSON.decoder(Any), JSON.decoder(Any)
        if codec == "msgpack":
            return None, MSGPACK.decoder(Any)
        raise ValueError(f'codec must be None, "json", "msgpack", a type or a function, not {codec!r}')
    # Aliases such as `Annotated[bytes, ...]` have what their types have.
    if not isinstance(codec, type) and get_origin(codec) is None:
        decode = getattr(codec, "decode", None)
        if callable(decode):
            return decode, decode
        if inspect.isroutine(codec):
            return codec, codec
    # Of a type: what its field names and values look like is the same in both.
    return JSON.decoder(codec), MSGPACK.decoder(codec)
