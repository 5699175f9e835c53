"""The version of websockets whose API the drop-in has: that of the installed package, if there is one."""

from __future__ import annotations

from typing import Any

from ._installed import Names

# The release whose API the drop-in follows without the package.
_names = Names("version", {"tag": "17.4", "version": "17.4", "commit": "17.4", "released": True})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
