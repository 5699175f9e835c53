"""JSON and MessagePack encoding of messages with msgspec. It knows nothing of connections."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["JSON", "MSGPACK", "Codec"]


class Codec:
    """A message format. msgspec is imported when it is used first.

    If msgspec is not installed, every method raises ``ImportError``, whose text names the package to install.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Enough for the message types of an application: creating a decoder takes much longer than decoding.
        self._decoder = functools.lru_cache(maxsize=256)(self._make_decoder)

    @functools.cached_property
    def _module(self) -> ModuleType:
        try:
            return importlib.import_module(f"msgspec.{self._name}")
        except ImportError as exc:
            raise ImportError(
                'JSON and MessagePack messages require msgspec; install it with: pip install "wirespeed[codecs]"'
            ) from exc

    @functools.cached_property
    def encode(self) -> Callable[[Any], bytes]:
        """Function that returns the bytes of a value; it raises ``TypeError`` if msgspec cannot encode it."""
        encode: Callable[[Any], bytes] = self._module.Encoder().encode
        return encode

    @functools.cached_property
    def _decode_any(self) -> Callable[[bytes], Any]:
        return self._make_decoder(Any)

    def decoder(self, type_: Any) -> Callable[[bytes], Any]:
        """Return a function that decodes a message.

        Call it before receiving, so that an unsupported type raises without losing a message.

        Args:
            type_: Expected type of the message.

        Raises:
            TypeError: msgspec does not support the type.
        """
        if type_ is Any:
            return self._decode_any
        try:
            hash(type_)
        except TypeError:
            return self._make_decoder(type_)
        return self._decoder(type_)

    def _make_decoder(self, type_: Any) -> Callable[[bytes], Any]:
        decode: Callable[[bytes], Any] = self._module.Decoder(type_).decode
        return decode


JSON = Codec("json")
MSGPACK = Codec("msgpack")
