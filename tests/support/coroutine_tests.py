"""Runs tests that are coroutine functions: on the event loop of the test's setting, with the checks of ``run``.

The fixture ``run`` runs the test. In ``tests/asyncio`` it uses the loop of the setting, elsewhere the loop of asyncio.
``asyncio_tools.run`` describes what it checks. Code that needs a closed loop or its own loop stays outside a coroutine:
such a test is a plain function that calls ``run`` itself.

pytest-asyncio and the plugin of anyio do not fit. They choose a loop, but not the I/O backend, and they end tasks that
a test leaves behind without a failure. They limit no time, and do not check for watched descriptors.

Markers:
    loop(timeout=, debug=): options of ``run``
    no_leaks: no descriptor is open after the run that was not open before it
    within(most, at_least=): bounds for the duration of the run, as of ``checks.within``
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest

# Modules that know the implementation under test are imported late: the option that chooses it is not read yet.

__all__ = ["pytest_configure", "pytest_pycollect_makeitem", "pytest_pyfunc_call", "run"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "loop(timeout=, debug=): how the coroutine of the test is run")
    config.addinivalue_line("markers", "no_leaks: the coroutine of the test leaves no descriptor open")
    config.addinivalue_line(
        "markers", "within(most, at_least=): bounds for the time that the coroutine of the test takes"
    )


@pytest.fixture
def run() -> Callable[..., Any]:
    """Runs a coroutine function on a new loop of asyncio."""
    from . import asyncio_tools

    return asyncio_tools.run


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    if collector.istestfunction(obj, name) and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("run")(obj)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from .checks import no_leaks, within

    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    loop = pyfuncitem.get_closest_marker("loop")
    with contextlib.ExitStack() as checks:
        if pyfuncitem.get_closest_marker("no_leaks") is not None:
            checks.enter_context(no_leaks())
            if (scripted := pyfuncitem.funcargs.get("scripted")) is not None:
                # The servers that the test started are in this process.
                checks.callback(cast(Any, scripted).stop)
        if (bounds := pyfuncitem.get_closest_marker("within")) is not None:
            checks.enter_context(within(*bounds.args, **bounds.kwargs))
        run = cast(Callable[..., Any], pyfuncitem.funcargs["run"])
        run(functools.partial(pyfuncitem.obj, **arguments), **({} if loop is None else loop.kwargs))
    return True
