"""Every fault at every stage of every API: calls end in time, as documented; nothing is lost silently, nothing leaks.

``--campaign`` runs the whole matrix. With ``--rotation 0/1`` every fault meets every stage and every API; by default
every fault is there, and a part of these combinations.
"""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.certificates import Certificates
from interop.samples import sample

from .lifetimes import LIFETIMES, run_lifetime
from .network_cell import run_cell
from .process import PROCESS
from .relay import RELAYED
from .table import Cell, all_cells, chosen

pytestmark = pytest.mark.wirespeed_only("the engine, the streams and the drop-in are ours")

HERE = (*RELAYED, *PROCESS, *LIFETIMES)


@pytest.fixture(scope="session")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Makes the library that moves the clock; without a compiler, the test is skipped."""

    @functools.cache
    def make() -> str:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no compiler of C, to make what moves the clock")
        made = tmp_path_factory.mktemp("clock") / "clock.so"
        source = Path(__file__).with_name("clock.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True, timeout=60)
        return str(made)

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
    if cell.fault in LIFETIMES:
        run_lifetime(cell, certificates, tmp_path, clock)
    else:
        run_cell(cell, certificates)
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert loud == []
