"""``python -m bench instructions``: counts of hot paths, compared with the stored ones."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import instructions
from harness.errors import UsageError
from harness.places import BENCH, ROOT

from support.native import find_binary


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (1030, 1000, ""),
        (1031, 1000, "MORE"),
        (971, 1000, ""),
        (969, 1000, "less: --write keeps it"),
        (1, None, "new"),
    ],
)
def test_verdict(now: int, before: int | None, expected: str) -> None:
    assert instructions.verdict(now, before, 0.03) == expected


def test_tolerances_of_another_compiler() -> None:
    # The code of another compiler or machine may differ by more.
    kept = instructions.Kept("rustc 1.2.3", {})
    assert (kept.factor("rustc 1.2.3"), kept.factor("rustc 1.3.0")) == (1.0, 3.0)


def test_paths_are_those_of_the_program() -> None:
    program = (BENCH / "instructions" / "path.py").read_text()
    paths = instructions.load_paths([])
    assert len(paths) >= 10
    for name, path in paths.items():
        assert f"def {name.rpartition(':')[2].replace('-', '_')}(count" in program
        assert 0 < path.low < path.high
        assert 0 < path.tolerance <= 0.25
    assert list(instructions.load_paths(["sync-send"])) == ["sync-send"]
    with pytest.raises(UsageError, match="unknown path nope: choose from sync-round-trip"):
        instructions.load_paths(["nope"])
    for own in json.loads(instructions.KEPT.read_text()).values():
        assert set(own["counts"]) == set(paths)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if find_binary() is None:
        pytest.skip("wirespeed-bench is not built: run cargo build --release -p wirespeed-bench")
    kept = tmp_path / "kept.json"
    monkeypatch.setattr(instructions, "KEPT", kept)
    monkeypatch.setattr("harness.instructions.SERVER", f"{find_binary()} echo --port 0")
    options = argparse.Namespace(path=["sync-send"], write=True, python=sys.executable)
    assert instructions.run(options) == 0
    ((key, own),) = json.loads(kept.read_text()).items()
    count = own["counts"]["sync-send"]
    assert 100 < count < 100_000
    # Half of it would have been a regression.
    options.write = False
    kept.write_text(kept.read_text().replace(str(count), str(count // 2)))
    assert instructions.run(options) == 1
    out = capsys.readouterr().out
    assert f"No counts are kept for {key}" in out
    assert out.splitlines()[-1].endswith("MORE")


def test_without_valgrind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, "-m", "bench", "instructions"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "bench: valgrind is not installed: apt-get install valgrind\n"
