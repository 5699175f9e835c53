"""Keyword arguments that other libraries have, and what they are called here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

from .common import Recalled

__all__ = ["hinting", "opening"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Made = TypeVar("_Made")

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


def opening(
    name: str, kinds: Collection[type], begin: Callable[..., _T], result: str
) -> Callable[[Callable[_P, _Made]], Callable[_P, _T]]:
    """Make a function, or a method, of a URI and keyword arguments out of one that checks these; hint at others.

    What was made of plain arguments is kept for the next call.

    Args:
        name: Name of the function for its users.
        kinds: As for :class:`Recalled`.
        begin: Goes on with the URI, behind ``self`` if there is one, and with what was made.
        result: Name of the type that ``begin`` returns, for whoever looks at the annotations.
    """

    def decorate(prepare: Callable[_P, _Made]) -> Callable[_P, _T]:
        recalled: Recalled[_Made] = Recalled(kinds)
        checked = hinting(name)(prepare)
        code = cast("FunctionType", prepare).__code__
        count = code.co_varnames.index("uri") + 1

        @functools.wraps(prepare)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            key = recalled.key(kwargs) if len(args) == count else None
            made = None if key is None else recalled.get(key)
            if made is None:
                made = checked(*args, **kwargs)
                if key is not None:
                    recalled.put(key, made)
            given = args if len(args) == count else (*args, kwargs["uri"])
            return begin(*given, made)

        prepare.__annotations__["return"] = call.__annotations__["return"] = result
        return call

    return decorate
