"""Names of annotations that Python has only in later versions, so that ``typing.get_type_hints`` can evaluate them."""

from __future__ import annotations

import collections.abc
import typing

__all__ = ["Buffer", "Self", "Unpack"]

if typing.TYPE_CHECKING:
    from typing_extensions import Buffer, Self, Unpack
else:
    # Type checkers have the others. At run time, versions without them have what is nearest.
    Buffer = getattr(collections.abc, "Buffer", typing.Any)
    Self = getattr(typing, "Self", typing.Any)
    Unpack = getattr(typing, "Unpack", type)
