"""Any calls with any values: only what is documented is raised, what is sent arrives whole, nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.wirespeed_only("it is about what is ours")

# Some seconds in all, where nothing else runs.
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
    from api.properties import world

    with world() as made:
        yield made


def names() -> list[str]:
    from api.properties import NAMES

    return NAMES


@pytest.mark.parametrize("name", names())
def test_any_calls(here: object, name: str) -> None:
    from api.properties import World, attempt

    assert isinstance(here, World)
    attempt(here, name, TRIES.get(name, 50))
