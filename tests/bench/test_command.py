"""``python -m bench``: its subcommands, its help, and its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.places import ROOT


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT, env=os.environ | variables
    )


def test_list_shows_workloads_and_headline_cells() -> None:
    result = bench("list", "clients")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "clients: Clients"
    assert "round-trip: Round trips: send, wait for the echo; 256, 512" in result.stdout
    result = bench("list", "--headline", "brokers")
    assert result.stdout.splitlines()[0].startswith("brokers: flood-100, 128 B, plain: wirespeed-engine:nats, ")
    assert "2 cells, 5 rounds, about 0 h 1 min" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nope"], "bench: unknown scenario nope: choose from"),
        (["run", "--workload", "nope"], "bench: unknown workload nope: choose from"),
        (["run", "--peer", "nope"], "bench: unknown peer nope: choose from"),
        (["run", "clients", "--set", "x"], "argument --set: 'x' is not OPTION=VALUE"),
        (["run", "clients", "--set", "x=1"], "bench: unknown option x"),
        (["run", "--quick", "--resume"], "bench: --resume goes on with a record"),
        (["run", "--quick", "--headline"], "argument --headline: not allowed with argument --quick"),
        (["run", "cores", "--headline"], "bench: docs/benchmarks.md shows nothing of cores"),
        (["list", "nope"], "bench: unknown scenario nope: choose from"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_arguments(arguments: list[str], complaint: str) -> None:
    result = bench(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert complaint in result.stderr.splitlines()[-1]


def test_missing_module_is_named(tmp_path: Path) -> None:
    # This module hides the installed one, and cannot be imported.
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('no', name='rich')\n")
    result = bench("list", PYTHONPATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    command = f"{sys.executable} -m pip install -r bench/requirements.txt"
    assert result.stderr == f"bench: rich is not installed: {command}\n"
