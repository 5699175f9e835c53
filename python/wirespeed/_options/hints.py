"""The signatures of functions that collect their options, and errors for unknown ones, which suggest the right name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable
from typing import TypedDict

__all__ = ["NoMore", "signature", "unexpected_argument"]

_OTHER_LIBRARIES = {"timeout": "open_timeout", "extra_headers": "additional_headers", "headers": "additional_headers"}


class NoMore(TypedDict):
    """No further keyword arguments: for type checkers, ``**unknown: Unpack[NoMore]`` accepts none."""


def unexpected_argument(function: str, unknown: Iterable[str], known: Collection[str]) -> TypeError:
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


def signature(options: type, *defaults: type) -> inspect.Signature:
    """Return the signature of a function of a URI and options, for ``help`` and :func:`inspect.signature`.

    Args:
        options: The ``TypedDict`` of the options.
        *defaults: Classes whose attributes are the defaults.
    """
    parameters = [inspect.Parameter("uri", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for name in options.__annotations__:
        default = next(getattr(kind, name) for kind in defaults if hasattr(kind, name))
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)
