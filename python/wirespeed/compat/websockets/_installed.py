"""The installed ``websockets`` package, if there is one: what is used of it, and how the exceptions of both are one.

It knows no connections. Where the package is installed, the modules of this one that hold no I/O show its objects: code
that takes some names from here and some from there sees the same classes. Where it is not, they show ours.
"""

from __future__ import annotations

import importlib
import types
import warnings
from collections.abc import Mapping
from typing import Any

from ... import close_codes, exceptions

__all__ = ["EXCEPTIONS", "MINIMUM", "Names", "find", "link_exceptions", "private", "real"]

MINIMUM = 14
"""The first release with the API that this package has."""

EXCEPTIONS = [name for name in exceptions.__all__ if name != "StreamClosedError"]
"""The exceptions that both have: the package has no streams."""


def _import() -> types.ModuleType | None:
    try:
        module = importlib.import_module("websockets")
        version = str(importlib.import_module("websockets.version").version)
    except ImportError:
        return None
    # wirespeed.patch() gives the name to a package of ours where there is no other.
    if module.__name__ != "websockets" or int(version.split(".")[0]) < MINIMUM:
        return None
    return module


real: types.ModuleType | None = _import()
"""The package, ``None`` if it is not installed or too old."""


_found: dict[str, types.ModuleType | None] = {}


def find(name: str) -> types.ModuleType | None:
    """Return a module of the package, ``None`` if there is none.

    Args:
        name: Its name below ``websockets``.
    """
    if real is None:
        return None
    # wirespeed.patch() asks for what it replaces before it does so.
    if name not in _found:
        try:
            _found[name] = importlib.import_module(f"websockets.{name}")
        except ImportError:
            _found[name] = None
    return _found[name]


def private(name: str, attribute: str) -> Any:
    """Return what a module of an API has beside its public names, from the package's module.

    Args:
        name: Name of the module below ``websockets``.
        attribute: The name.

    Raises:
        AttributeError: It has no such name, or there is no package.
    """
    module = None if attribute.startswith("__") else find(name)
    if module is None:
        raise AttributeError(f"module 'websockets.{name}' has no attribute {attribute!r}")
    return getattr(module, attribute)


class Names:
    """What a module shows: the objects of the package's module of that name, or ours.

    Args:
        name: Name of the module below ``websockets``.
        ours: What to show without the package, and what older releases lack.
        also: Public names that the package does not list.
    """

    def __init__(self, name: str, ours: Mapping[str, Any], also: tuple[str, ...] = ()) -> None:
        self._name = name
        self._ours = ours
        self._theirs = find(name)
        listed = list(ours) if self._theirs is None else [*getattr(self._theirs, "__all__", ()), *also]
        self.public = [name for name in dict.fromkeys(listed) if self._theirs is None or hasattr(self._theirs, name)]

    def get(self, name: str) -> Any:
        """Return an object.

        Args:
            name: Its name.

        Raises:
            AttributeError: Neither has it.
        """
        if self._theirs is not None:
            try:
                return getattr(self._theirs, name)
            except AttributeError:
                if name not in self._ours:
                    raise
        if name in self._ours:
            return self._ours[name]
        hint = "" if name.startswith("__") else "; it needs the websockets package, which is not installed"
        raise AttributeError(f"module 'websockets.{self._name}' has no attribute {name!r}{hint}")


def link_exceptions() -> None:
    """Make the exceptions of the package base classes of ours, and its ``Close``, which they hold, that of ours.

    ``except websockets.ConnectionClosed`` then catches what our connections raise, wherever it is raised, and
    ``except wirespeed.ConnectionClosed`` catches it as ever. It is not undone: connections may outlive whoever asked.
    """
    theirs = find("exceptions")
    if theirs is None:
        return
    # A base class comes before those derived from it: each derived class finds an order of its bases.
    for name in sorted(EXCEPTIONS, key=lambda name: len(getattr(exceptions, name).__mro__)):
        with warnings.catch_warnings():
            # Release 14.0 has some under deprecated names. Nobody has used them yet.
            warnings.simplefilter("ignore", DeprecationWarning)
            base = getattr(theirs, name, None)
        _add_base(getattr(exceptions, name), base)
    _add_base(close_codes.Close, getattr(find("frames"), "Close", None))


def _add_base(ours: type, base: type | None) -> None:
    if base is not None and not issubclass(ours, base):
        first, *others = ours.__bases__
        ours.__bases__ = (first, base, *others)
