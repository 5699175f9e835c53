"""Parsers for option values, shared by all commands."""

from __future__ import annotations

import argparse
import math
import re

__all__ = ["PORT", "limit", "parse_count", "parse_seconds", "parse_size"]

PORT = 8765
"""The default port of servers, used in all examples."""


def parse_seconds(text: str) -> float:
    """Return a number of seconds; ``inf`` is allowed.

    Args:
        text: The argument.

    Raises:
        ArgumentTypeError: It is not a number of seconds.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def parse_count(text: str) -> int:
    """Return a number that is at least 1.

    Args:
        text: The argument.

    Raises:
        ArgumentTypeError: It is not a positive number.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parse_size(text: str) -> int | None:
    """Return a number of bytes, ``None`` for ``none``.

    Args:
        text: The argument: ``1048576``, ``16M`` or ``none``.

    Raises:
        ArgumentTypeError: It is not a size.
    """
    if text.lower() == "none":
        return None
    match = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1048576, 16M or none")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def limit(seconds: float) -> float | None:
    """Return a timeout for ``connect`` and ``serve``: ``None`` for no limit.

    Args:
        seconds: The value of the option.
    """
    return None if math.isinf(seconds) else seconds
