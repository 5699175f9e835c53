"""A test run survives its workers: a test that ends one has failed, and the others run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wirespeed_only("it looks at the suite itself")

ROOT = Path(__file__).parent.parent

# For a whole run, on a busy machine.
PATIENCE = 50.0

CRASHING = """
import os, time
import pytest

def test_before(): pass

def test_ends_the_worker(): {how}

@pytest.mark.parametrize("number", range({after}))
def test_after(number): pass
"""


@pytest.mark.parametrize("dist", ["loadfile", "loadgroup"])
def test_workers_that_die_are_survived(tmp_path: Path, dist: str) -> None:
    """Also when one test is left, which a worker would keep until it gets another."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\ntimeout_method = thread\n")
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    for after, how in enumerate(["time.sleep(1000)", "os._exit(3)", "os._exit(0)"]):
        (tmp_path / f"test_{after}.py").write_text(CRASHING.format(after=after, how=how))
    (tmp_path / "test_quick.py").write_text("def test_quick(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", dist, "--slowest-files", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^3 failed, 7 passed", done.stdout, re.MULTILINE), done.stdout
    assert "slowest 3 of 4 files" in done.stdout
