"""What is imported when it is first used: names of a package, by PEP 562, and modules that cost much and serve few.

A package lists its names three times: under ``TYPE_CHECKING``, as imports, for type checkers and editors; in
``__all__``; and for :func:`lazy`, with the modules that have them. ``tests/test_imports.py`` compares the lists.
"""

from __future__ import annotations

import importlib
import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Later", "lazy", "ssl", "uuid"]


class Later:
    """A module that is imported when something of it is used; also by annotations, when somebody evaluates them.

    Args:
        name: Its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> typing.Any:
        return getattr(importlib.import_module(self._name), attribute)


if typing.TYPE_CHECKING:
    import ssl
    import uuid
else:
    ssl = Later("ssl")
    uuid = Later("uuid")


def lazy(
    package: str, sources: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], typing.Any], Callable[[], list[str]]]:
    """Return what a package needs as ``__getattr__`` and ``__dir__``.

    Args:
        package: Name of the package.
        sources: Names by the module that has them, which is relative to the package.
        modules: Modules of the package that are attributes without having been imported.
    """
    found = {name: source for source, names in sources.items() for name in names}
    submodules = frozenset(modules)

    def get(name: str) -> typing.Any:
        if name in submodules:
            # Importing makes it an attribute.
            return importlib.import_module(f"{package}.{name}")
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(found[name], package), name)
        # Python does not ask again.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *found, *submodules})

    return get, names
