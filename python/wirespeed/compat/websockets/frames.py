"""Close codes, the content of close frames, and opcodes. ``Frame`` is that of the installed package."""

from __future__ import annotations

import enum
from typing import Any

from ...close_codes import Close as _Close
from ...close_codes import CloseCode as _CloseCode
from ._installed import Names

# RFC 6455, section 5.2.
_Opcode = enum.IntEnum("_Opcode", {"CONT": 0, "TEXT": 1, "BINARY": 2, "CLOSE": 8, "PING": 9, "PONG": 10})

_Opcode.__name__ = "Opcode"
_names = Names("frames", {"Opcode": _Opcode, "CloseCode": _CloseCode, "Close": _Close})
__all__ = _names.public


def __getattr__(name: str) -> Any:
    return _names.get(name)


def __dir__() -> list[str]:
    return sorted(__all__)
