"""Names for annotations that only later Python versions have, so that ``typing.get_type_hints`` always works."""

from __future__ import annotations

import collections.abc
import typing

__all__ = ["Buffer", "Self", "Unpack"]

if typing.TYPE_CHECKING:
    from typing_extensions import Buffer, Self, Unpack
else:
    # Type checkers use the names above. At run time, older versions use the nearest equivalent.
    Buffer = getattr(collections.abc, "Buffer", typing.Any)
    Self = getattr(typing, "Self", typing.Any)
    Unpack = getattr(typing, "Unpack", type)
