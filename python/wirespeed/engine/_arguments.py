"""Checks of the arguments of an engine. The native core checks the types of all other arguments."""

from __future__ import annotations

from .._native import ServerTLS
from .._options.common import bounded
from .._options.server import check_tls, native_server_tls
from ..tls import TLS

__all__ = ["check_count", "checked_seconds", "checked_tls"]

# Used instead of "no limit": longer than any process waits.
_FOREVER = 20 * 86400.0


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise TypeError or ValueError unless an argument is an int within a range.

    Args:
        name: The name of the argument.
        value: The value passed by the user.
        least: The minimum.
        most: The maximum; ``None``: less than 2**62.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if most is None:
        if value < least or value >> 62:
            raise ValueError(f"{name} must be {least} or more, and less than 2**62")
    elif not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}")


def checked_seconds(name: str, value: object, *, zero: bool = True) -> float:
    """Return a number of seconds, clamped to a value that clocks can add.

    Args:
        name: The name of the argument.
        value: The value passed by the user.
        zero: Whether it may be 0.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, NaN, or 0 without ``zero``.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    # Only NaN differs from itself; math.isnan does not accept every int.
    if value != value or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be a number of seconds {'from 0 up' if zero else 'above 0'}")
    seconds = bounded(value)
    return _FOREVER if seconds is None else seconds


def checked_tls(ssl: object) -> ServerTLS:
    """Return the native form of TLS settings.

    Args:
        ssl: The value passed by the user.

    Raises:
        TypeError: It is not a TLS object.
        ValueError: The settings are not for a server.
    """
    if not isinstance(ssl, TLS):
        raise TypeError(f"ssl must be a TLS or None, not {type(ssl).__name__}")
    check_tls(ssl)
    return native_server_tls(ssl)
