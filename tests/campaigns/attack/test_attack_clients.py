"""Attacks of servers on clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from campaigns.attack.measuring import Attacked

pytestmark = [pytest.mark.wirespeed_only("the limits are ours"), pytest.mark.timeout(300)]

KINDS = ("client-sync", "client-asyncio-fd", "client-asyncio-transport")


def test_attack_stays_within_bounds(attacked: Attacked, slug: str) -> None:
    from campaigns.attack.checks import check_bounds

    check_bounds(attacked, slug)
