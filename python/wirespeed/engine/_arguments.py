"""What the arguments of an engine may be. Those that are not checked here are by their types, natively."""

from __future__ import annotations

from .._native import ServerTLS
from .._options.common import bounded
from .._options.server import check_tls, native_server_tls
from ..tls import TLS

__all__ = ["check_count", "checked_seconds", "checked_tls"]

# Longer than anything lasts.
_FOREVER = 20 * 86400.0


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise TypeError or ValueError unless an argument is an int of a range.

    Args:
        name: The argument.
        value: What the user passed.
        least: The least that it may be.
        most: The most; ``None``: what is less than 2**62.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if most is None:
        if value < least or value >> 62:
            raise ValueError(f"{name} must be {least} or more, and less than 2**62")
    elif not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}")


def checked_seconds(name: str, value: object, *, zero: bool = True) -> float:
    """Return an argument that is a number of seconds; one that is as good as for ever, as a number that clocks can add.

    Args:
        name: The argument.
        value: What the user passed.
        zero: Whether it may be 0.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative, NaN, or 0.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    # Only NaN differs from itself; math.isnan does not take every int.
    if value != value or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be a number of seconds {'from 0 up' if zero else 'above 0'}")
    seconds = bounded(value)
    return _FOREVER if seconds is None else seconds


def checked_tls(ssl: object) -> ServerTLS:
    """Return the native form of TLS settings.

    Args:
        ssl: What the user passed.

    Raises:
        TypeError: They are none.
        ValueError: They are none of a server.
    """
    if not isinstance(ssl, TLS):
        raise TypeError(f"ssl must be a TLS or None, not {type(ssl).__name__}")
    check_tls(ssl)
    return native_server_tls(ssl)
