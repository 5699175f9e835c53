"""Every fault at every stage of every API: calls end in time, as documented; nothing is lost silently, nothing leaks.

``--campaign`` runs the whole matrix. With ``--rotation 0/1`` every fault meets every stage and every API; by default
every fault is there, and a part of these combinations.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.certificates import Certificates
from support.samples import sample

from .lifetimes import LIFETIMES, make_clock
from .process import PROCESS
from .relay import RELAYED
from .table import Cell, all_cells, chosen
from .verdict import run_cell

pytestmark = pytest.mark.wirespeed_only("the engine, the streams and the drop-in are ours")

HERE = (*RELAYED, *PROCESS, *LIFETIMES)


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Makes the library that moves the clock; without a compiler, the test is skipped."""

    @functools.cache
    def make() -> str:
        if shutil.which("cc") is None:
            pytest.skip("there is no compiler of C, to make what moves the clock")
        return make_clock(tmp_path_factory.mktemp("clock"))

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        cells = [c for c in all_cells() if c.fault in HERE]
        if not metafunc.config.getoption("--campaign"):
            rotation = metafunc.config.getoption("--rotation")
            cells = sample(chosen(cells), 7, rotation, kind=lambda cell: cell.fault)
        metafunc.parametrize("cell", cells, ids=str)


def test_cell(
    cell: Cell, certificates: Certificates, tmp_path: Path, clock: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    run_cell(cell, certificates, tmp_path, clock)
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert loud == []
