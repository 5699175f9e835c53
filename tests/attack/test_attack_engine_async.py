"""Attacks on engines whose handlers are coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from attack.measuring import Attacked

pytestmark = [pytest.mark.wirespeed_only("websockets has no engine"), pytest.mark.timeout(300)]

KINDS = ("engine-async",)


def test_bounds_hold(attacked: Attacked, slug: str) -> None:
    from attack.checks import hold

    hold(attacked, slug)
