"""Attacks on servers of an event loop, with handlers and with listeners, over both ways to the socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from attack.measuring import Attacked

pytestmark = [pytest.mark.wirespeed_only("the server is ours"), pytest.mark.timeout(300)]

KINDS = ("asyncio-fd", "asyncio-transport", "listener-fd", "listener-transport")


def test_bounds_hold(attacked: Attacked, slug: str) -> None:
    from attack.checks import hold

    hold(attacked, slug)
