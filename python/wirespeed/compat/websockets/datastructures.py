"""HTTP headers."""

from __future__ import annotations

from typing import Any

from ... import datastructures as _datastructures
from ._installed import Names

_names = Names(
    "datastructures",
    {name: getattr(_datastructures, name) for name in _datastructures.__all__[:3]},
    also=("SupportsKeysAndGetItem",),
)
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
