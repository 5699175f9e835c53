"""Arbitrary calls with arbitrary values: only documented exceptions are raised, sent messages arrive whole, nothing
leaks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.samples import sample

pytestmark = pytest.mark.wirespeed_only("it is about what is ours")

# A whole run takes some seconds on an idle machine; without the option --rotation a sixth of the examples run.
TRIES = {
    "arguments": 600,
    "engine": 150,
    "blocking client": 200,
    "blocking server": 60,
    "requests": 300,
    "locations": 1000,
}


@pytest.fixture(scope="module")
def here() -> Iterator[object]:
    from campaigns.api.properties import world

    with world() as made:
        yield made


def names() -> list[str]:
    from campaigns.api.properties import NAMES

    return NAMES


@pytest.mark.parametrize("name", names())
def test_arbitrary_calls(here: object, name: str, rotation: str | None) -> None:
    from campaigns.api.properties import World, attempt

    assert isinstance(here, World)
    tries = sample(range(TRIES.get(name, 50)), 6, rotation)
    # Whole runs and short ones use no seed, so that the short one is a part of the whole.
    attempt(here, name, len(tries), tries[0] or None)
