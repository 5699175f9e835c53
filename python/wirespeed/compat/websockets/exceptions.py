"""The exceptions: those of the installed package, which are base classes of ours, or ours.

``except`` clauses that name either catch what our connections raise.
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
