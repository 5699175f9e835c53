"""The native module, if it was built with failpoints that panic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .tools import Failpoints, native


@pytest.fixture(autouse=True)
def failpoints() -> Iterator[Failpoints]:
    """Failpoints of the native module; none panics when the test ends."""
    if not hasattr(native, "arm_failpoint"):
        pytest.skip("built without the feature fault-injection: run scripts/panics.sh")
    armed = Failpoints()
    yield armed
    armed.disarm()
