"""Both packages by name, and clients and servers of either."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest

PACKAGES = {"ours": "wirespeed.compat.websockets", "theirs": "websockets"}


class Package:
    """One of the two packages: attributes such as ``package.asyncio.client`` import the module of that name."""

    def __init__(self, name: str, path: str = "") -> None:
        self._name = name
        self._path = path

    def __repr__(self) -> str:
        return f"{self._name}{self._path}"

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(PACKAGES[self._name] + self._path)
        if f"{self._path}.{name}" in (".asyncio", ".sync", ".extensions"):
            return Package(self._name, f"{self._path}.{name}")
        if self._path or name in ("exceptions", "http11", "frames", "datastructures", "protocol"):
            return importlib.import_module(f"{module.__name__}.{name}")
        return getattr(module, name)


@pytest.fixture(params=["ours", "theirs"])
def client(request: pytest.FixtureRequest) -> Package:
    """The package of the client."""
    return Package(request.param)


@pytest.fixture(params=["ours", "theirs"])
def server(request: pytest.FixtureRequest) -> Package:
    """The package of the server."""
    return Package(request.param)


@pytest.fixture(params=["ours", "theirs"])
def package(request: pytest.FixtureRequest) -> Package:
    """The package of both ends."""
    return Package(request.param)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("websockets")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/compat/" in str(item.path):
            item.add_marker(pytest.mark.wirespeed_only("the drop-in is ours"))


__all__ = ["PACKAGES", "Package"]
