"""Attacks on servers of an event loop, with handlers and with listeners, with both I/O backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from campaigns.attack.measuring import Attacked

pytestmark = [pytest.mark.wirespeed_only("the server is ours"), pytest.mark.timeout(300)]

KINDS = ("asyncio-fd", "asyncio-transport", "listener-fd", "listener-transport")


def test_attack_stays_within_bounds(attacked: Attacked, slug: str) -> None:
    from campaigns.attack.checks import check_bounds

    check_bounds(attacked, slug)
