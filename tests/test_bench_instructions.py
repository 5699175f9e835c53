"""``wirespeed bench instructions``: what hot paths cost, beside what is kept."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from interop.native import find_binary

if sys.hexversion < 0x030B0000:  # not by version_info: type checkers, which go by 3.10, are to read on
    pytest.skip("the harness of the benchmarks needs Python 3.11", allow_module_level=True)

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import tomllib  # type: ignore[import-not-found]  # noqa: E402 - from 3.11 on
from harness import instructions  # noqa: E402
from harness.errors import UsageError  # noqa: E402


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        (103.0, 100.0, ""),
        (103.1, 100.0, "MORE"),
        (97.1, 100.0, ""),
        (96.9, 100.0, "less: --write keeps it"),
        (1.0, None, "new"),
    ],
)
def test_verdict(now: float, before: float | None, expected: str) -> None:
    assert instructions.verdict(now, before, 0.03) == expected


def test_what_is_kept() -> None:
    other = {"cpython-3.10": {"made_by": "rustc 1.0.0", "a": 7}}
    text = instructions.kept_text(other, "cpython-3.11", "rustc 1.2.3", {"b": 41.7, "run:c": 5.2})
    whole = tomllib.loads(text)
    assert whole == other | {"cpython-3.11": {"made_by": "rustc 1.2.3", "b": 42, "run:c": 5}}
    assert instructions.load_kept(whole, "cpython-3.11", "rustc 1.2.3") == ({"b": 42.0, "run:c": 5.0}, 1.0)
    # The same code of another compiler, on another machine, may differ by more.
    assert instructions.load_kept(whole, "cpython-3.11", "rustc 1.3.0") == ({"b": 42.0, "run:c": 5.0}, 3.0)
    assert instructions.load_kept(whole, "cpython-3.9", "rustc 1.2.3") == ({}, 1.0)


def test_paths_are_those_of_the_program() -> None:
    program = (BENCH / "instructions" / "path.py").read_text()
    paths = instructions.load_paths([])
    assert len(paths) >= 10
    for path in paths:
        assert f'"{path.name.rpartition(":")[2]}":' in program
        assert 0 < path.low < path.high
        assert 0 < path.tolerance <= 0.25
    assert [path.name for path in instructions.load_paths(["sync-send"])] == ["sync-send"]
    with pytest.raises(UsageError, match="unknown path nope: choose from sync-round-trip"):
        instructions.load_paths(["nope"])
    kept = tomllib.loads(instructions.KEPT.read_text())
    for own in kept.values():
        assert set(own) - {"made_by"} == {path.name for path in paths}


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if find_binary() is None:
        pytest.skip("wirespeed-bench is not built: run cargo build --release -p wirespeed-bench")
    kept = tmp_path / "kept.toml"
    monkeypatch.setattr(instructions, "KEPT", kept)
    monkeypatch.setattr("harness.instructions.SERVER", f"{find_binary()} echo --port 0")
    options = argparse.Namespace(path=["sync-send"], write=True, python=sys.executable)
    assert instructions.run(options) == 0
    ((key, own),) = tomllib.loads(kept.read_text()).items()
    assert 100 < own["sync-send"] < 100_000
    # Twice the same; and half of it would have been a change for the worse.
    options.write = False
    assert instructions.run(options) == 0
    kept.write_text(kept.read_text().replace(str(own["sync-send"]), str(own["sync-send"] // 2)))
    assert instructions.run(options) == 1
    out = capsys.readouterr().out
    assert f"No counts are kept for {key}" in out
    assert out.splitlines()[-1].endswith("MORE")


def test_without_valgrind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [sys.executable, str(BENCH / "run.py"), "instructions"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "bench: valgrind is not installed: apt-get install valgrind\n"
