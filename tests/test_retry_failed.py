"""Repetition of failed tests: tests/support/retry_failed.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wirespeed_only("about the tests themselves")

# Each test fails as often as the text says: the file keeps the number of runs.
TEST = """
import os, pathlib
def runs(name):
    path = pathlib.Path({folder!r}) / name
    count = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (count + 1))
    return count
"""
FAILS_ONCE = "def test_{name}():\n    assert runs('{name}') > 0\n"
FAILS_TWICE = "def test_{name}():\n    assert runs('{name}') not in (0, 3)\n"
ALWAYS = "def test_{name}():\n    runs('{name}')\n    assert False\n"
ENDS = "def test_{name}():\n    if runs('{name}') == 0:\n        os._exit(3)\n"


def outcome(folder: Path, file: str, *tests: str, workers: bool = False, again: int = 3) -> tuple[int, str]:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    text = TEST.format(folder=str(folder))
    path.write_text(text + "".join(test.format(name=f"t{number}") for number, test in enumerate(tests)))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "support.retry_failed",
        "-p",
        "no:cacheprovider",
        f"--again={again}",
    ]
    command += [f"--rootdir={folder}", *(["-n", "1"] if workers else []), str(path)]
    # Only the necessary tests, as each of these runs starts several processes.
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "xdist.plugin" if workers else "",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", [False, True], ids=["one", "workers"])
def test_test_that_passes_alone(tmp_path: Path, workers: bool) -> None:
    """It is no failure, and reported as a repetition."""
    code, text = outcome(tmp_path, "test_a.py", FAILS_ONCE, FAILS_ONCE, workers=workers)
    assert code == 0, text
    assert "test_a.py::test_t1 (call): look for the cause; it passed 3 times" in text
    assert "AssertionError" in text or "assert 0 > 0" in text
    assert (tmp_path / "t0").read_text() == "xxxx"


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        pytest.param("test_a.py", [ALWAYS], id="always"),
        pytest.param("test_a.py", [FAILS_TWICE], id="again-the-third-time"),
        pytest.param("test_a.py", [FAILS_ONCE] * 3, id="many"),
        pytest.param("test_a.py", [FAILS_ONCE, ALWAYS], id="one-of-two"),
        pytest.param("liveness/test_a.py", [FAILS_ONCE], id="random"),
        pytest.param("test_ends.py", [FAILS_ONCE], id="random-file"),
    ],
)
def test_test_that_fails_again(tmp_path: Path, file: str, tests: list[str]) -> None:
    code, text = outcome(tmp_path, file, *tests)
    assert code == 1, text
    assert "passed alone" not in text


def test_a_process_that_ends(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, "test_a.py", ENDS, workers=True)
    assert code == 1, text
    assert "crashed" in text
    assert "passed alone" not in text


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, "test_a.py", "raise ValueError\n")
    assert code == 2, text


def test_off_by_default(tmp_path: Path) -> None:
    assert outcome(tmp_path, "test_a.py", FAILS_ONCE, again=0)[0] == 1
