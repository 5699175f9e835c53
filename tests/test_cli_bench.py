"""``wirespeed bench``: finds the benchmarks, hands over, says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wirespeed.cli import _bench as bench
from wirespeed.cli._status import CommandError

ROOT = Path(__file__).resolve().parents[1]
needs_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="the benchmarks need Python 3.11")


def wirespeed(*arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wirespeed", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, cwd=cwd, env=os.environ | variables
    )


def test_help_names_it() -> None:
    result = wirespeed("--help")
    assert result.returncode == 0
    assert "bench" in result.stdout
    assert "compare wirespeed with its rivals" in result.stdout


@needs_311
def test_list_and_help() -> None:
    result = wirespeed("bench", "list", "clients")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "clients: Clients"
    assert "round-trip: Round trips: send, wait for the echo; 256, 512" in result.stdout
    result = wirespeed("bench", "run", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("usage: wirespeed bench run")
    for option in ("--workload", "--peer", "--size", "--loop", "--tls", "--plain", "--quick", "--pin", "--resume"):
        assert option in result.stdout


@needs_311
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nope"], "bench: unknown scenario nope: choose from"),
        (["run", "--workload", "nope"], "bench: unknown workload nope: choose from"),
        (["run", "--peer", "nope"], "bench: unknown peer nope: choose from"),
        (["run", "clients", "--set", "x"], "argument --set: 'x' is not OPTION=VALUE"),
        (["run", "clients", "--set", "x=1"], "bench: unknown option x"),
        (["run", "--quick", "--resume"], "bench: --resume goes on with a record"),
        (["list", "nope"], "bench: unknown scenario nope: choose from"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_arguments(arguments: list[str], complaint: str) -> None:
    result = wirespeed("bench", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert complaint in result.stderr.splitlines()[-1]


@needs_311
def test_without_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "lib" / "wirespeed" / "cli"
    monkeypatch.setattr(bench, "__file__", str(package / "bench.py"))
    with pytest.raises(CommandError, match="are part of the source, not of the package: git clone https://"):
        bench.run(["list"])


@needs_311
def test_without_what_it_needs(tmp_path: Path) -> None:
    # A module that is not there, whatever is installed.
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('no', name='rich')\n")
    result = wirespeed("bench", "list", PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == 'wirespeed: the benchmarks need rich: pip install "wirespeed[bench]"\n'


@needs_311
def test_is_found_from_a_folder_inside_the_clone() -> None:
    result = wirespeed("bench", "list", "opening", cwd=ROOT / "docs")
    assert result.returncode == 0
    assert result.stdout.startswith("opening: ")


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="what older versions of Python are told")
def test_older_python() -> None:
    result = wirespeed("bench", "list")
    assert (result.returncode, result.stderr) == (1, "wirespeed: the benchmarks need Python 3.11 or newer\n")
