"""JSON and MessagePack of messages, by msgspec. It knows nothing of connections."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["JSON", "MSGPACK", "Codec"]


class Codec:
    """A format. msgspec is imported with the first message that needs it.

    Every method raises ``ImportError``, which says what to install, if there is no msgspec.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # As many as an application has types of messages: making a decoder takes much longer than a message.
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
        """What returns the bytes of a value; it raises ``TypeError`` if msgspec cannot encode it."""
        encode: Callable[[Any], bytes] = self._module.Encoder().encode
        return encode

    @functools.cached_property
    def _decode_any(self) -> Callable[[bytes], Any]:
        return self._make_decoder(Any)

    def decoder(self, type_: Any) -> Callable[[bytes], Any]:
        """Return what decodes a message.

        It is there before a message is received, so that what is wrong with the type costs no message.

        Args:
            type_: What the message must be.

        Raises:
            TypeError: msgspec does not know such types.
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
