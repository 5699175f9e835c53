"""Errors for unknown keyword arguments, which suggest the right name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import TypedDict

__all__ = ["NoMore", "unexpected_argument"]

_OTHER_LIBRARIES = {"timeout": "open_timeout", "extra_headers": "additional_headers", "headers": "additional_headers"}


class NoMore(TypedDict):
    """No further keyword arguments: for type checkers, ``**unknown: Unpack[NoMore]`` accepts none."""


def unexpected_argument(function: str, unknown: Mapping[str, object], known: Collection[str]) -> TypeError:
    """Return the error for an unknown keyword argument.

    Args:
        function: Public name of the function.
        unknown: The unknown arguments.
        known: The names of its arguments.
    """
    name = next(iter(unknown))
    text = f"{function}() got an unexpected keyword argument {name!r}"
    similar = [_OTHER_LIBRARIES[name]] if name in _OTHER_LIBRARIES else difflib.get_close_matches(name, known, 1)
    return TypeError(f"{text}; did you mean {similar[0]}?" if similar and similar[0] in known else text)
