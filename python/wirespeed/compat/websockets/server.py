"""The Sans-I/O protocol of a server, which is that of the installed package."""

from __future__ import annotations

from typing import Any

from ._installed import Names

_names = Names("server", {})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
