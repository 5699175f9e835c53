"""Random schedules, for some seconds: no call waits without end, no message is lost, doubled, torn or out of order.

``WIRESPEED_LIVENESS_SECONDS`` is the length of a whole run, of all cases together, of which a run without the option
``--rotation`` takes a fifth. ``WIRESPEED_LIVENESS_SEED`` is the first seed, by default 1. A failure prints the smallest
schedule that was found, and how to run it again: ``make liveness``.
"""

from __future__ import annotations

import os

import pytest

from campaigns.common.schedules import campaign
from campaigns.liveness.campaign import Liveness
from campaigns.liveness.settings import matching
from support.samples import sample
from support.subject import IS_WIRESPEED

SECONDS = float(os.environ.get("WIRESPEED_LIVENESS_SECONDS", "60"))
# The first schedules of a fixed seed each time: `make liveness` makes new ones.
FIRST = int(os.environ.get("WIRESPEED_LIVENESS_SEED", "1"))

CASES = {
    "asyncio-client": ["asyncio-*-client-*[!n]"],
    "asyncio-server": ["asyncio-*-server-*[!n]"],
    "uvloop": ["uvloop-*[!n]"],
    "wirespeed": ["wirespeed-*[!n]"],
    "threads": ["threads-*[!n]"],
    "dropin": ["*-dropin"],
}
SHRINKING = 20.0

pytestmark = [
    pytest.mark.wirespeed_only("websockets promises less"),
    pytest.mark.timeout(SECONDS + SHRINKING + 60),
]


@pytest.mark.parametrize("case", CASES)
def test_no_call_waits_forever(case: str, rotation: str | None) -> None:
    assert IS_WIRESPEED
    sixtieths = sample(range(60), 5, rotation)
    settings = [setting for pattern in CASES[case] for setting in matching(pattern)]
    if not settings:
        pytest.skip("this loop is not installed")
    # Far from the seeds of the other cases.
    first = (FIRST + sixtieths[0]) * 1000 + list(CASES).index(case) * 100_000
    schedules = Liveness(settings)
    outcome = campaign(schedules, SECONDS * len(sixtieths) / 60 / len(CASES), first, shrinking=SHRINKING)
    if outcome.failure is not None:
        pytest.fail(schedules.report(outcome.failure), pytrace=False)
    assert outcome.runs
