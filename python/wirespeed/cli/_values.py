"""Values of options: how they are written on a command line, for every command."""

from __future__ import annotations

import argparse
import math
import re

__all__ = ["PORT", "limit", "parse_count", "parse_seconds", "parse_size"]

PORT = 8765
"""Where a server listens, as in all examples."""


def parse_seconds(text: str) -> float:
    """Return a number of seconds, ``inf`` included.

    Args:
        text: What was written.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def parse_count(text: str) -> int:
    """Return a number that is 1 at least.

    Args:
        text: What was written.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def parse_size(text: str) -> int | None:
    """Return a number of bytes, ``None`` for ``none``.

    Args:
        text: What was written: ``1048576``, ``16M``, ``none``.

    Raises:
        ArgumentTypeError: It is no size.
    """
    if text.lower() == "none":
        return None
    match = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1048576, 16M or none")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def limit(seconds: float) -> float | None:
    """Return a limit as ``connect`` and ``serve`` take it: ``None`` for none.

    Args:
        seconds: What was asked for.
    """
    return None if math.isinf(seconds) else seconds
