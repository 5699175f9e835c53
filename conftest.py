"""Hooks for every run of pytest, in ``tests`` and in ``interop``: runs survive dead workers and report slow files.

A test that hangs ends its worker (``timeout`` in ``pyproject.toml``). The schedulers of pytest-xdist that keep files or
groups together reassign the rest of such a worker including the hanging test, and may wait forever for a worker that
has one test left. Here the test that ended a worker has failed, and the other tests run.

Option: --slowest-files N prints the N files that took longest at the end of the run
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Iterator
from typing import Any

import pytest

try:
    from xdist.scheduler import LoadFileScheduling, LoadGroupScheduling
except ImportError:  # not installed: pytest runs in one process, and never asks for a scheduler
    LoadFileScheduling = LoadGroupScheduling = object


class _Surviving:
    """Makes both schedulers survive the end of a worker."""

    def add_node_collection(self, node: Any, collection: Any) -> None:
        super().add_node_collection(node, collection)  # type: ignore[misc]
        if node not in self.registered_collections:
            # This worker found other tests than the earlier workers, so it gets none.
            node.shutdown()

    def remove_node(self, node: Any) -> str | None:
        """Gives the remaining tests of a dead worker to other workers, except the one that was running, which is
        returned.
        """
        crashed = None
        for scope, unit in self.assigned_work.pop(node).items():
            left = [test for test, completed in unit.items() if not completed]
            if left and crashed is None:
                crashed = left.pop(0)
                unit[crashed] = True
            if left:
                self.workqueue[scope] = unit
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:
            return  # a new worker that is still collecting: this is called again when it has finished
        super()._reschedule(node)  # type: ignore[misc]
        # A worker runs a test only when it knows the next one.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)  # type: ignore[misc]


class _ByFile(_Surviving, LoadFileScheduling):
    pass


class _ByGroup(_Surviving, LoadGroupScheduling):
    pass


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    kinds = {"loadfile": _ByFile, "loadgroup": _ByGroup}
    kind = kinds.get(config.getoption("dist"))
    return None if kind is None else kind(config, log)


def _keep_what_is_there() -> None:
    """Freezes live objects, so that the garbage collector skips them.

    Thousands of tests run the collector to check for leaks. Each run would traverse all tests and modules for at least
    a tenth of a second: most of the time of a test run.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _keep_what_is_there()


@pytest.fixture(autouse=True, scope="module")
def _collect_after_a_module() -> Iterator[None]:
    """Results of finished tests, which pytest keeps, are frozen as well."""
    yield
    _keep_what_is_there()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slowest-files", type=int, default=0, metavar="N", help="print the N files that took longest, and how long"
    )


class _Times:
    """Sums the time of every test of all workers by file."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seconds: collections.Counter[str] = collections.Counter()
        self.tests: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration
        self.tests[file] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(f"slowest {self.most} of {len(self.seconds)} files")
        for file, seconds in self.seconds.most_common(self.most):
            terminalreporter.write_line(f"{seconds:7.1f} s {self.tests[file]:5} tests  {file}")
        terminalreporter.write_line(f"{sum(self.seconds.values()):7.1f} s {sum(self.tests.values()):5} tests  in all")


def pytest_configure(config: pytest.Config) -> None:
    most = config.getoption("--slowest-files")
    if most > 0 and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Times(most), "slowest-files")
