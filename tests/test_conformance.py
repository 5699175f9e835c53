"""The Autobahn suite on some ends, without the cases that take minutes: ``make conformance`` has all. And the stored
outcomes.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from support.load_scaling import load_scaled
from support.samples import sample

FOLDER = Path(__file__).resolve().parents[1] / "conformance"

SKIPPED = 77

pytestmark = [
    pytest.mark.wirespeed_only("the suite is run on wirespeed"),
    # The suite may have to be installed.
    pytest.mark.timeout(600),
]

# Half a minute each. A default run has the first and the last.
SOME = ["client-sync", "client-asyncio-fd-asyncio", "server-asyncio-fd-asyncio", "server-engine-tls"]
SOME += ["server-engine-handler"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "end" in metafunc.fixturenames:
        metafunc.parametrize("end", sample(SOME, 4, metafunc.config.getoption("--rotation")))


def test_autobahn(end: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), end, "--cases", "quick", "--reports", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=load_scaled(250), check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "247 cases" in done.stdout


def test_every_end_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cases that take minutes, or at least all others; and the page shows the stored outcomes."""
    monkeypatch.syspath_prepend(str(FOLDER))
    ends = importlib.import_module("runner.ends").ENDS
    outcomes = importlib.import_module("runner.outcomes")
    number = importlib.import_module("runner.verdicts").expected_number
    known = outcomes.read()
    assert set(known) == {end.name for end in ends}
    assert {outcome["cases"] for outcome in known.values()} <= {number("all"), number("small")}
    assert outcomes.table(known) in outcomes.PAGE.read_text()
