"""The argument of ``compression_memory``; crates/driver/tests/compression_pool.rs tests its effect."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from wirespeed import compression_memory

pytestmark = pytest.mark.wirespeed_only("ours")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = compression_memory()
    yield
    compression_memory(before)


def test_returns_the_previous_limit() -> None:
    assert compression_memory() == 64 * 2**20
    assert compression_memory(0) == 64 * 2**20
    assert compression_memory(sys.maxsize - 1) == 0
    assert compression_memory() == compression_memory(None) == sys.maxsize - 1


@pytest.mark.parametrize("limit", [-1, sys.maxsize, 2**100])
def test_wrong_values(limit: int) -> None:
    with pytest.raises(ValueError, match="limit must be at least 0"):
        compression_memory(limit)
    assert compression_memory() == 64 * 2**20


@pytest.mark.parametrize("limit", [True, 1.5, "1"])
def test_wrong_types(limit: Any) -> None:
    with pytest.raises(TypeError, match="limit must be an int or None, not"):
        compression_memory(limit)
