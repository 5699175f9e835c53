"""Imports on first use: names of a package (PEP 562), and modules whose import is expensive and seldom needed.

A package lists its names three times: as imports under ``TYPE_CHECKING``, for type checkers and editors; in
``__all__``; and in the arguments of :func:`lazy`. ``tests/test_imports.py`` compares the lists.
"""

from __future__ import annotations

import importlib
import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["LazyModule", "lazy", "ssl", "uuid"]


class LazyModule:
    """A module that is imported when an attribute of it is used, or when annotations are evaluated.

    Args:
        name: Name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> typing.Any:
        return getattr(importlib.import_module(self._name), attribute)


if typing.TYPE_CHECKING:
    import ssl
    import uuid
else:
    ssl = LazyModule("ssl")
    uuid = LazyModule("uuid")


def lazy(
    package: str, sources: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], typing.Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: Name of the package.
        sources: Modules, relative to the package, and the names that they define.
        modules: Submodules that become attributes of the package on first use.
    """
    found = {name: source for source, names in sources.items() for name in names}
    submodules = frozenset(modules)

    def get(name: str) -> typing.Any:
        if name in submodules:
            # The import sets the attribute.
            return importlib.import_module(f"{package}.{name}")
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(found[name], package), name)
        # Python does not call this function for the name again.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *found, *submodules})

    return get, names
