"""Types in the signatures of public functions."""

from __future__ import annotations

import collections.abc
import http
import logging
import os
import typing
from typing import TYPE_CHECKING, Any, NewType

from .datastructures import HeadersLike

__all__ = [
    "BytesLike",
    "Data",
    "DataLike",
    "ExtensionName",
    "ExtensionParameter",
    "HeadersLike",
    "LoggerLike",
    "Origin",
    "PathLike",
    "StatusLike",
    "Subprotocol",
]

if TYPE_CHECKING:
    from typing_extensions import Buffer as Buffer
    from typing_extensions import Self as Self
    from typing_extensions import Unpack as Unpack
else:
    # Names for annotations of this package, so that `typing.get_type_hints` works: the nearest equivalent in older
    # versions of Python, which do not have them.
    Buffer = getattr(collections.abc, "Buffer", Any)
    Self = getattr(typing, "Self", Any)
    Unpack = getattr(typing, "Unpack", type)

Data = str | bytes
"""Types of a received message: ``str`` for text, ``bytes`` for binary."""

BytesLike = bytes | bytearray | memoryview
"""Types accepted where ``bytes`` are expected."""

DataLike = str | bytes | bytearray | memoryview
"""Types accepted where a message is expected."""

if TYPE_CHECKING:
    LoggerLike = logging.Logger | logging.LoggerAdapter[Any]
else:
    # Subscripting LoggerAdapter at run time requires Python 3.11.
    LoggerLike = logging.Logger | logging.LoggerAdapter
"""Types accepted where a logger is expected."""

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""Types accepted where a path is expected."""

StatusLike = http.HTTPStatus | int
"""Types accepted where an HTTP status is expected."""

Origin = NewType("Origin", str)
"""Value of an Origin header."""

Subprotocol = NewType("Subprotocol", str)
"""Name of a subprotocol in a Sec-WebSocket-Protocol header."""

ExtensionName = NewType("ExtensionName", str)
"""Name of an extension in a Sec-WebSocket-Extensions header."""

ExtensionParameter = tuple[str, str | None]
"""Parameter of an extension: its name, and its value if it has one."""
