"""The native module, if it was built so that places of it can be asked to panic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .tools import Faults, native


@pytest.fixture(autouse=True)
def faults() -> Iterator[Faults]:
    """Places of the native module that panic on request; none does when the test ends."""
    if not hasattr(native, "arm_failpoint"):
        pytest.skip("built without the feature fault-injection: run scripts/panics.sh")
    armed = Faults()
    yield armed
    armed.disarm()
