"""The fields that every response of a server has."""

from __future__ import annotations

import email.utils
import random
import time

import pytest

pytestmark = pytest.mark.wirespeed_only("they are ours")


@pytest.mark.parametrize("moment", [1, 951_782_400, 2_147_483_648, *random.Random(9110).choices(range(2**33), k=50)])
def test_date_is_that_of_the_standard_library(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from wirespeed._server.responses import common_fields

    monkeypatch.setattr(time, "time", lambda: moment + 0.9)
    assert common_fields(None) == [("Date", email.utils.formatdate(moment, usegmt=True))]
