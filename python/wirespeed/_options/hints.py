"""Keyword arguments that other libraries have, and what they are called here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

__all__ = ["hinting"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

# inspect.CO_VARKEYWORDS
_TAKES_ANY = 0x08

_NAMES = {"timeout": "open_timeout", "extra_headers": "additional_headers", "headers": "additional_headers"}


def hinting(name: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let a function say what it calls an argument that it does not know by its other name.

    Args:
        name: Name of the function for its users.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        # Not by inspect.signature, which takes as long as all else that happens when a client is imported.
        code = cast("FunctionType", function).__code__
        others = {**_NAMES}
        # One that takes any keyword arguments hands them on to one that has them all.
        if not code.co_flags & _TAKES_ANY:
            parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            others = {wrong: right for wrong, right in _NAMES.items() if right in parameters}
        wrong_names = frozenset(others)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if not wrong_names.isdisjoint(kwargs):
                wrong = next(key for key in kwargs if key in wrong_names)
                raise TypeError(f"{name}() got an unexpected keyword argument {wrong!r}; did you mean {others[wrong]}?")
            return function(*args, **kwargs)

        return call

    return decorate
