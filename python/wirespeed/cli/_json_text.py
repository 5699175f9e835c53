"""JSON for terminals: checked, indented and colored.

Values are not converted: ``1.10`` stays ``1.10``, and duplicate keys stay duplicate.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

__all__ = ["check_json", "pretty_json"]

_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([\[{])\s*([\]}])?|([\]}])|(,)|([^\s\[\]{},:"]+)|:')

_COLORS = {"key": "34", "string": "32", "number": "36", "literal": "35"}


def check_json(text: str | bytes) -> None:
    """Check that a text is JSON (RFC 8259).

    Args:
        text: The text.

    Raises:
        ValueError: It is not JSON; the message contains the position.
    """
    try:
        # Numbers are not converted, because they may have more digits than Python allows.
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def pretty_json(text: str, *, color: bool) -> str:
    """Return JSON with one value on each line.

    Args:
        text: JSON that was checked with :func:`check_json`.
        color: Whether to add colors for a terminal.
    """
    out: list[str] = []
    depth = 0
    for string, colon, opening, empty, closing, comma, other in _TOKEN.findall(text):
        if string:
            out.append(_paint(string, "key" if colon else "string", color) + (": " if colon else ""))
        elif opening:
            out.append(opening + empty)
            if not empty:
                depth += 1
                out.append(_line(depth))
        elif closing:
            depth -= 1
            out.append(_line(depth) + closing)
        elif comma:
            out.append(comma + _line(depth))
        elif other:
            out.append(_paint(other, "literal" if other.isalpha() else "number", color))
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * depth


def _paint(text: str, kind: str, color: bool) -> str:
    return f"\x1b[{_COLORS[kind]}m{text}\x1b[0m" if color else text


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
