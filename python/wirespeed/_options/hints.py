"""Suggests the right keyword argument when a user passes one of another library, and caches checked arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

from .common import OptionsCache

__all__ = ["suggesting_names", "cached_arguments"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Made = TypeVar("_Made")

# inspect.CO_VARKEYWORDS
_TAKES_ANY = 0x08

_NAMES = {"timeout": "open_timeout", "extra_headers": "additional_headers", "headers": "additional_headers"}


def suggesting_names(name: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function: for a keyword argument with the name of another library, its error suggests the right name.

    Args:
        name: Public name of the function.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        # inspect.signature would take as long as the rest of importing a client.
        code = cast("FunctionType", function).__code__
        others = {**_NAMES}
        # A function with **kwargs passes them to one that has all parameters.
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


def cached_arguments(
    name: str, kinds: Collection[type], begin: Callable[..., _T], result: str
) -> Callable[[Callable[_P, _Made]], Callable[_P, _T]]:
    """Decorate a function that checks its keyword arguments: call ``begin`` with the URI and its result.

    Results for immutable arguments are cached. Wrong keyword arguments get a suggestion: see :func:`suggesting_names`.

    Args:
        name: Public name of the function.
        kinds: As for :class:`OptionsCache`.
        begin: Called with ``self``, if the function has it, the URI and the result of the check.
        result: Name of the return type of ``begin``, for the annotations.
    """

    def decorate(prepare: Callable[_P, _Made]) -> Callable[_P, _T]:
        cache: OptionsCache[_Made] = OptionsCache(kinds)
        checked = suggesting_names(name)(prepare)
        code = cast("FunctionType", prepare).__code__
        count = code.co_varnames.index("uri") + 1

        @functools.wraps(prepare)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            key = cache.key(kwargs) if len(args) == count else None
            made = None if key is None else cache.get(key)
            if made is None:
                made = checked(*args, **kwargs)
                if key is not None:
                    cache.put(key, made)
            given = args if len(args) == count else (*args, kwargs["uri"])
            return begin(*given, made)

        prepare.__annotations__["return"] = call.__annotations__["return"] = result
        return call

    return decorate
