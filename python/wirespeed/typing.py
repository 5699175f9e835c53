"""Types in the signatures of public functions."""

from __future__ import annotations

import http
import logging
import os
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
