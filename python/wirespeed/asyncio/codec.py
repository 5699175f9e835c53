"""JSON and MessagePack of messages, by msgspec. It knows nothing of connections."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

__all__ = ["decode_json", "decode_msgpack", "encode_json", "encode_msgpack"]


@functools.cache
def _msgspec() -> ModuleType:
    try:
        import msgspec.json
        import msgspec.msgpack
    except ImportError as exc:
        raise ImportError(
            'JSON and MessagePack messages require msgspec; install it with: pip install "wirespeed[codecs]"'
        ) from exc
    return msgspec


# As many as an application has types of messages: a decoder is made once for each, which takes much longer than a
# message.
@functools.lru_cache(maxsize=256)
def _decoder(codec: str, type_: Any) -> Any:
    return getattr(_msgspec(), codec).Decoder(type_)


def _decode(codec: str, data: bytes, type_: Any) -> Any:
    try:
        decoder = _decoder(codec, type_)
    except TypeError as exc:
        if "unhashable" not in str(exc):
            raise
        decoder = getattr(_msgspec(), codec).Decoder(type_)
    return decoder.decode(data)


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON.

    Args:
        value: What msgspec can encode.
    """
    encoded: bytes = _msgspec().json.encode(value)
    return encoded


def decode_json(data: str | bytes, type_: Any) -> Any:
    """Decode JSON.

    Args:
        data: UTF-8.
        type_: What it must be.
    """
    return _decode("json", data if isinstance(data, bytes) else data.encode(), type_)


def encode_msgpack(value: Any) -> bytes:
    """Encode a value as MessagePack.

    Args:
        value: What msgspec can encode.
    """
    encoded: bytes = _msgspec().msgpack.encode(value)
    return encoded


def decode_msgpack(data: str | bytes, type_: Any) -> Any:
    """Decode MessagePack.

    Args:
        data: The encoded value.
        type_: What it must be.
    """
    return _decode("msgpack", data if isinstance(data, bytes) else data.encode(), type_)
