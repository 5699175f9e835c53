"""Attacks on the server of threads, and on uvicorn with our class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from campaigns.attack.measuring import Attacked

pytestmark = [pytest.mark.wirespeed_only("the servers are ours"), pytest.mark.timeout(300)]

KINDS = ("sync", "uvicorn")


def test_attack_stays_within_bounds(attacked: Attacked, slug: str) -> None:
    from campaigns.attack.checks import check_bounds

    check_bounds(attacked, slug)
