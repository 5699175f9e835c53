"""The exceptions of the installed package, which are base classes of those of wirespeed; otherwise those of wirespeed.

``except`` clauses with either catch the exceptions of wirespeed connections.
"""

from __future__ import annotations

from typing import Any

from ... import exceptions as _exceptions
from ._installed import EXCEPTIONS, Names

_names = Names("exceptions", {name: getattr(_exceptions, name) for name in EXCEPTIONS})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
