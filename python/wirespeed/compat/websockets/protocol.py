"""States and sides of a connection. The Sans-I/O protocol is that of the installed package."""

from __future__ import annotations

import enum
from typing import Any

from ..._connection import State as _State
from ._installed import Names

_Side = enum.IntEnum("_Side", {"SERVER": 0, "CLIENT": 1})

_Side.__name__ = "Side"
_names = Names("protocol", {"Side": _Side, "State": _State, "SEND_EOF": b"", **_State.__members__, **_Side.__members__})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
