"""Types for annotations."""

from __future__ import annotations

from typing import Any

from ... import typing as _typing
from ._installed import Names

_names = Names("typing", {name: getattr(_typing, name) for name in _typing.__all__ if name != "HeadersLike"})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
