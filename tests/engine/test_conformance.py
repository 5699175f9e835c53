"""The Autobahn suite on the engine, less what takes minutes: ``make conformance API=engine END=server`` has all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from interop.patience import patience

RUNNER = Path(__file__).resolve().parents[2] / "conformance" / "run_server.py"

SKIPPED = 77

pytestmark = [
    pytest.mark.wirespeed_only("websockets has no engine"),
    # The suite may have to be installed.
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("arguments", [["engine"], ["engine", "--tls"], ["engine-handler"]], ids="-".join)
def test_autobahn(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, str(RUNNER), "--cases", "quick", "--report", str(tmp_path / "report"), "--api"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=patience(250), check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
