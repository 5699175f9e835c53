"""Access to the installed ``websockets`` package, and the link between the exceptions of both packages.

If the package is installed, the modules of the drop-in without I/O export its objects, so that code which imports from
both gets the same classes. If it is not installed, they export the objects of this package.
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
"""The first release with the API of the drop-in."""

EXCEPTIONS = [name for name in exceptions.__all__ if name != "StreamClosedError"]
"""The exceptions that both packages have; websockets has no streams."""


def _import() -> types.ModuleType | None:
    try:
        module = importlib.import_module("websockets")
        version = str(importlib.import_module("websockets.version").version)
    except ImportError:
        return None
    # After wirespeed.patch(), the name may belong to the drop-in.
    if module.__name__ != "websockets" or int(version.split(".")[0]) < MINIMUM:
        return None
    return module


real: types.ModuleType | None = _import()
"""The package, ``None`` if it is not installed or too old."""


_found: dict[str, types.ModuleType | None] = {}


def find(name: str) -> types.ModuleType | None:
    """Return a module of the package, ``None`` if it does not exist.

    Args:
        name: Its name below ``websockets``.
    """
    if real is None:
        return None
    # Cached, because wirespeed.patch() looks up the original modules before it replaces them.
    if name not in _found:
        try:
            _found[name] = importlib.import_module(f"websockets.{name}")
        except ImportError:
            _found[name] = None
    return _found[name]


def private(name: str, attribute: str) -> Any:
    """Return an object that a module of the package has, but the drop-in does not export.

    Args:
        name: Name of the module below ``websockets``.
        attribute: Name of the object.

    Raises:
        AttributeError: The module has no such name, or the package is not installed.
    """
    module = None if attribute.startswith("__") else find(name)
    if module is None:
        raise AttributeError(f"module 'websockets.{name}' has no attribute {attribute!r}")
    return getattr(module, attribute)


class Names:
    """The exports of a module: the objects of the package's module of the same name, or of this package.

    Args:
        name: Name of the module below ``websockets``.
        ours: Objects to use without the package, and for names that older releases lack.
        also: Public names that the package does not list in ``__all__``.
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
            AttributeError: Neither package has it.
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
    """Make the exceptions and ``Close`` of the package base classes of those of this package.

    Then ``except websockets.ConnectionClosed`` also catches exceptions of wirespeed connections. The link is not
    undone, because connections may still exist.
    """
    theirs = find("exceptions")
    if theirs is None:
        return
    # Base classes first, so that Python finds a method resolution order for each derived class.
    for name in sorted(EXCEPTIONS, key=lambda name: len(getattr(exceptions, name).__mro__)):
        with warnings.catch_warnings():
            # Release 14.0 has some of them under deprecated names.
            warnings.simplefilter("ignore", DeprecationWarning)
            base = getattr(theirs, name, None)
        _add_base(getattr(exceptions, name), base)
    _add_base(close_codes.Close, getattr(find("frames"), "Close", None))


def _add_base(ours: type, base: type | None) -> None:
    if base is not None and not issubclass(ours, base):
        first, *others = ours.__bases__
        ours.__bases__ = (first, base, *others)
