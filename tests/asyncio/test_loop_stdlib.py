"""The standard library's own tests of asyncio and of selectors: on our loop they end as on the stock loop.

Each module runs in a process of its own, by ``stdlib_suite.py``. Tests that do not pass on our loop run on the stock
loop as well, where they must end alike: skipped, or failed. With ``WIRESPEED_STDLIB=all`` every test runs on both, and
more modules do.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wirespeed.asyncio.loop import Selector

pytestmark = [
    pytest.mark.wirespeed_only("the loop is ours"),
    pytest.mark.skipif(Selector.native_class is None, reason="this system has no epoll: the loop is the stock one"),
    pytest.mark.skipif(importlib.util.find_spec("test.support") is None, reason="this Python comes without its tests"),
    # A test waits for its turn among the modules that run at the same time.
    pytest.mark.timeout(300),
]

ALL = os.environ.get("WIRESPEED_STDLIB") == "all"
SUITE = Path(__file__).with_name("stdlib_suite.py")

# The longest first.
MODULES = [
    "test_asyncio.test_subprocess",
    "test_asyncio.test_tasks",
    "test_selectors",
    "test_asyncio.test_ssl",
    "test_asyncio.test_taskgroups",
    "test_asyncio.test_events",
    "test_asyncio.test_sslproto",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_base_events",
    "test_asyncio.test_futures",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_waitfor",
    "test_asyncio.test_eager_task_factory",
    "test_asyncio.test_locks",
    "test_asyncio.test_streams",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_context",
    "test_asyncio.test_pep492",
    "test_asyncio.test_queues",
    "test_asyncio.test_runners",
    "test_asyncio.test_selector_events",
    "test_asyncio.test_server",
    "test_asyncio.test_threads",
    "test_asyncio.test_timeouts",
    "test_asyncio.test_unix_events",
]

# These modules make no loop that waits for files, or only while other tests of the standard library run.
MORE_MODULES = [
    "test_asyncio.test_free_threading",
    "test_asyncio.test_futures2",
    "test_asyncio.test_graph",
    "test_asyncio.test_protocols",
    "test_asyncio.test_staggered",
    "test_asyncio.test_transports",
    "test_contextlib_async",
    "test_coroutines",
    "test_asyncgen",
    "test_unittest.test_async_case",
]

OTHER_END = {
    f"test_selectors.{case}.test_modify_unregister": "it replaces a part of the class that it knows by name"
    for case in ("DefaultSelectorTestCase", "EpollSelectorTestCase")
}
"""Tests that cannot end alike, and why."""


class Suite:
    """Runs modules, one for each processor at a time."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self.kinds = ("wirespeed", "stock") if ALL else ("wirespeed",)
        self.running: dict[tuple[str, str], Future[Any]] = {}

    def results(self, module: str) -> list[Any]:
        """Returns the outcome of the tests of a module on each kind of loop."""
        if not self.running:
            for name in selected():
                for kind in self.kinds:
                    self.running[kind, name] = self.pool.submit(run_suite, kind, name)
        return [self.running[kind, module].result() for kind in self.kinds]

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def suite() -> Iterator[Suite]:
    made = Suite()
    yield made
    made.close()


def selected() -> list[str]:
    names = MODULES + (MORE_MODULES if ALL else [])
    return [name for name in names if find(f"test.{name}") is not None]


def find(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def run_suite(kind: str, *names: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(SUITE), kind, *names],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{kind} {names}: status {done.returncode}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def differences(ours: dict[str, str], stock: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {
        name: (ours.get(name), stock.get(name))
        for name in {*ours, *stock}
        if ours.get(name) != stock.get(name) and name not in OTHER_END
    }


@pytest.mark.parametrize("module", selected())
def test_ends_as_on_the_stock_loop(suite: Suite, module: str) -> None:
    results = suite.results(module)
    ours = results[0]
    assert ours["outcomes"]
    if ALL:
        different = differences(ours["outcomes"], results[1]["outcomes"])
    else:
        rest = {name: outcome for name, outcome in ours["outcomes"].items() if outcome != "ok"}
        stock = run_suite("stock", *names_to_run(module, rest)) if rest else {"outcomes": {}}
        different = differences(rest, {name: end for name, end in stock["outcomes"].items() if name in rest})
    for _ in range(3):
        if not different:
            break
        # Some of these tests depend on time: they are repeated alone, on both loops.
        suite.pool.shutdown(cancel_futures=False)
        again = [run_suite(kind, *names_to_run(module, different)) for kind in ("wirespeed", "stock")]
        ours["texts"].update(again[0]["texts"])
        different = differences(*({name: one["outcomes"].get(name) for name in different} for one in again))
    text = "\n".join(f"{name}: {ends}\n{ours['texts'].get(name, '')}" for name, ends in different.items())
    assert not different, f"on our loop, and on the stock one:\n{text}"


def names_to_run(module: str, tests: dict[str, Any]) -> list[str]:
    """Names to pass to the suite for these tests: for a fixture of a module or a class, the whole suite runs."""
    return sorted(tests) if all(name.startswith(f"{module}.") for name in tests) else [module]
