"""The settings of the tests of this folder, and resources that must exist before leaks are counted."""

from __future__ import annotations

import itertools

import pytest

WHEN = ("early", "late")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setting" in metafunc.fixturenames:
        from support.asyncio_tools import SETTINGS
        from support.matrix import one_per_backend
        from support.samples import sample

        everything = bool(metafunc.config.getoption("--campaign"))
        settings = SETTINGS if everything else one_per_backend(metafunc.function.__name__)
        if "when" not in metafunc.fixturenames:
            metafunc.parametrize("setting", settings, ids=str)
            return
        # Two settings: one for early, the other for late cancellation.
        cases = list(itertools.product(settings, WHEN))
        if not everything:
            cases = sample(cases, 3, metafunc.config.getoption("--rotation"))
        metafunc.parametrize(("setting", "when"), cases, ids=lambda value: str(value))


@pytest.fixture(autouse=True, scope="session")
def _first_loops() -> None:
    """The first loop of libuv opens a pipe for the whole process, which is no leak."""
    from support import asyncio_tools

    for loop in asyncio_tools.LOOPS:
        asyncio_tools.run(asyncio_tools.spin, loop=loop)
