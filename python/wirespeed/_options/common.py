"""Checks of options that Python code uses itself. ``crates/python/src/options.rs`` checks the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "QUEUE_BYTES",
    "check_io_backend",
    "check_logger",
    "check_subprotocols",
    "check_type",
    "bounded",
    "OptionsBase",
]

QUEUE_BYTES = 4 * 2**20
"""Default limit in bytes for received messages that wait for the application: the size of the socket buffers of one
connection on common systems."""


# Three weeks in seconds.
_LONGEST_TIMEOUT = 21 * 86400.0

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class OptionsBase:
    """Options, as attributes with the same names. A subclass declares them with annotations and default values.

    Args:
        options: The options by name; others have their defaults.
    """

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._defaults = {**cls._defaults, **{name: getattr(cls, name) for name in cls.__annotations__}}

    def __init__(self, options: Mapping[str, Any]) -> None:
        # Also the defaults: attributes of an instance are found faster than those of its class.
        self.__dict__.update(self._defaults, **options)


def check_type(name: str, value: object, expected: type | tuple[type, ...], description: str) -> None:
    """Raise TypeError unless an option is ``None`` or an instance of a type."""
    if value is not None and not isinstance(value, expected):
        raise TypeError(f"{name} must be {description}, not {type(value).__name__}")


def check_logger(logger: Any) -> None:
    """Raise TypeError unless an option is ``None`` or a logger."""
    if logger is not None and not hasattr(logger, "debug"):
        raise TypeError(f"logger must be a logging.Logger, not {type(logger).__name__}")


def check_io_backend(io_backend: object) -> None:
    """Raise ValueError unless an option names an I/O backend."""
    if io_backend not in (None, "fd", "transport"):
        raise ValueError(f'io_backend must be "fd", "transport" or None, not {io_backend!r}')


def bounded(seconds: float | None) -> float | None:
    """Return a timeout, or ``None`` for three weeks and more, such as ``math.inf``.

    Args:
        seconds: The argument of the user.
    """
    return None if seconds is None or seconds >= _LONGEST_TIMEOUT else seconds


def check_subprotocols(value: object) -> None:
    """Raise TypeError or ValueError unless an argument is a list of subprotocols."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"subprotocols must be a list of str, not {type(value).__name__}")
    for subprotocol in value:
        if not isinstance(subprotocol, str):
            raise TypeError(f"subprotocols must be a list of str, it contains a {type(subprotocol).__name__}")
        # RFC 6455, section 4.1: tokens of RFC 9110.
        if not _TOKEN.fullmatch(subprotocol):
            raise ValueError(f"subprotocols must be tokens, without spaces or commas; {subprotocol!r} is not")
