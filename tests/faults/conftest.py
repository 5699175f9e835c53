"""The settings in which the tests of this folder run, and what has to be there before anything is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .stepping import When


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setting" in metafunc.fixturenames:
        from interop.asyncio_tools import SETTINGS
        from interop.matrix import one_per_port

        everything = bool(metafunc.config.getoption("--campaign"))
        settings = SETTINGS if everything else one_per_port(metafunc.function.__name__)
        metafunc.parametrize("setting", settings, ids=str)


@pytest.fixture(params=["early", "late"])
def when(request: pytest.FixtureRequest) -> When:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True, scope="session")
def _first_loops() -> None:
    """The first loop of libuv opens a pipe for the whole process, which is no leak."""
    from interop import asyncio_tools

    for loop in asyncio_tools.LOOPS:
        asyncio_tools.run(asyncio_tools.spin, loop=loop)
