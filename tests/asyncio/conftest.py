"""Each test of this folder runs in several settings: event loops and I/O backends.

``run`` runs a coroutine function on the loop of the setting: each test that is one, or the argument of its call.
``connect`` connects with the I/O backend of the setting.
``support.matrix`` defines the settings of a test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.certificates import Certificates
from support.tls_settings import Settings

# Modules that know the implementation under test are imported late: this file may be loaded before the choice is made.
if TYPE_CHECKING:
    from support.asyncio_tools import Setting


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "setting" in metafunc.fixturenames:
        from support import matrix

        module = cast(ModuleType, metafunc.module)
        metafunc.parametrize("setting", matrix.choose(module, metafunc.function.__name__), ids=str)


@pytest.fixture
def run(setting: Setting) -> Callable[..., Any]:
    from support import asyncio_tools

    run = functools.partial(asyncio_tools.run, loop=setting.loop)
    # The first loop of libuv opens a pipe for the whole process, which is no leak.
    run(asyncio_tools.spin)
    return run


def _options(setting: Setting) -> dict[str, Any]:
    from support.subject import IS_WIRESPEED

    return {"io_backend": setting.io_backend} if IS_WIRESPEED else {}


@pytest.fixture
def connect(setting: Setting) -> Callable[..., Any]:
    from support import asyncio_subject

    return functools.partial(asyncio_subject.connect, **_options(setting))


@pytest.fixture
def unix_connect(setting: Setting) -> Callable[..., Any]:
    from support import asyncio_subject

    return functools.partial(asyncio_subject.unix_connect, **_options(setting))


@pytest.fixture(
    params=[
        pytest.param("native", marks=pytest.mark.wirespeed_only("wirespeed.TLS is ours")),
        "context",
    ]
)
def tls(request: pytest.FixtureRequest, certificates: Certificates) -> Settings:
    return Settings(request.param, certificates)
