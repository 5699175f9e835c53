"""The annotations of all public objects can be evaluated."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import wirespeed

pytestmark = pytest.mark.wirespeed_only("the annotations are ours")

MODULES = [
    "wirespeed",
    *(
        module.name
        for module in pkgutil.walk_packages(wirespeed.__path__, "wirespeed.")
        if not any(part.startswith("_") for part in module.name.split("."))
    ),
]


def functions_of(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        if isinstance(found, property):
            found = found.fget
        ours = getattr(found, "__module__", None) or ""
        if inspect.isfunction(found) and ours.startswith("wirespeed") and (name[0] != "_" or name.endswith("__")):
            yield name, found


@pytest.mark.parametrize("module", MODULES)
def test_type_hints(module: str) -> None:
    public = importlib.import_module(module)
    wrong = []
    for name in getattr(public, "__all__", ()):
        value = getattr(public, name)
        found = [(name, value)] if inspect.isclass(value) or inspect.isfunction(value) else []
        if inspect.isclass(value):
            found += [(f"{name}.{method}", function) for method, function in functions_of(value)]
        for label, function in found:
            try:
                typing.get_type_hints(function)
            except NameError as exc:
                wrong.append(f"{label}: {exc}")
    assert wrong == []
