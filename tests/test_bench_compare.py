"""``bench/run.py compare``: two records of the benchmarks side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.hexversion < 0x030B0000:  # not by version_info: type checkers, which go by 3.10, are to read on
    pytest.skip("the harness of the benchmarks needs Python 3.11", allow_module_level=True)

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from harness.errors import UsageError  # noqa: E402
from harness.record import COLUMNS, read_csv  # noqa: E402
from harness.scenario import Cell  # noqa: E402


def row(peer: str, turn: int, rate: float, *, workload: str = "echo", memory: str = "", failure: str = "") -> str:
    figures = ("1000", str(1000 / rate), str(rate), "0.1", "0.2", "") if not failure else ("",) * 6
    return ",".join((workload, "256", "0", str(turn), peer, "1.0", *figures, memory, failure))


def record(path: Path, *rows: str, **facts: str) -> Path:
    lines = [*(f"# {key}: {value}" for key, value in facts.items()), ",".join(COLUMNS), *rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "run.py"), "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def cells(line: str) -> list[str]:
    return [part.strip() for part in line.split("  ") if part.strip()]


def test_reading(tmp_path: Path) -> None:
    path = record(tmp_path / "a.csv", row("ours", 1, 500), row("theirs", 1, 1, failure="it lost one"), cpu="a: b")
    read = read_csv(path)
    assert read.facts == {"cpu": "a: b"}
    ours, theirs = read.samples
    assert (ours.peer, ours.cell, ours.round, ours.count) == ("ours", Cell("echo", 256, tls=False), 1, 1000)
    assert ours.rate == pytest.approx(500)
    assert (ours.server, ours.memory) == (None, None)
    assert theirs.failure == "it lost one"


def test_every_record_that_is_kept() -> None:
    for path in (BENCH / "records").rglob("*.csv"):
        read = read_csv(path)
        assert read.facts["scenario"] in path.name
        assert read.samples


def test_change(tmp_path: Path) -> None:
    """Ranges that do not touch are a difference, others are noise."""
    old = record(
        tmp_path / "old.csv",
        *(row("ours", turn, 100 + turn) for turn in (1, 2, 3)),
        *(row("theirs", turn, 100 + turn) for turn in (1, 2, 3)),
        *(row("worse", turn, 100 + turn) for turn in (1, 2, 3)),
        row("gone", 1, 1),
    )
    new = record(
        tmp_path / "new.csv",
        *(row("ours", turn, 200 + turn) for turn in (1, 2, 3)),
        *(row("theirs", turn, 102 + turn) for turn in (1, 2, 3)),
        *(row("worse", turn, 50 + turn) for turn in (1, 2, 3)),
        row("came", 1, 1),
    )
    done = compare(old, new)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert cells(head)[-1] == "new / old"
    assert [cells(line)[1:] for line in lines] == [
        ["ours", "102", "202", "1.980", "better"],
        ["theirs", "102", "104", "1.020"],
        ["worse", "102", "52.000", "0.510", "worse"],
    ]


def test_against_a_peer(tmp_path: Path) -> None:
    """A machine that is twice as fast has changed nothing."""
    old = record(tmp_path / "old.csv", row("ours", 1, 100), row("ours", 2, 120), row("ref", 1, 50), row("ref", 2, 60))
    new = record(tmp_path / "new.csv", row("ours", 1, 200), row("ours", 2, 240), row("ref", 1, 100), row("ref", 2, 120))
    done = compare(old, new, "--against", "ref")
    assert [cells(line)[1:] for line in done.stdout.splitlines()[1:]] == [["ours", "2.000", "2.000", "1.000"]]


def test_memory_is_each(tmp_path: Path) -> None:
    old = record(tmp_path / "old.csv", row("ours", 1, 10, memory="5000000"))
    new = record(tmp_path / "new.csv", row("ours", 1, 99, memory="2500000"))
    assert cells(compare(old, new).stdout.splitlines()[1])[1:] == ["ours", "5,000", "2,500", "0.500", "better"]


def test_failure_and_circumstances(tmp_path: Path) -> None:
    old = record(tmp_path / "old.csv", row("ours", 1, 100), row("fine", 1, 100), cpu="old one", time="1")
    new = record(
        tmp_path / "new.csv",
        row("ours", 1, 1, failure="ContentError: a reply differs"),
        row("fine", 1, 100),
        cpu="new one",
        time="2",
    )
    first, empty, _, ours, fine = compare(old, new).stdout.splitlines()
    assert (first, empty) == ("cpu: old one -> new one", "")
    assert cells(ours)[1:] == ["ours", "100", "-", "-", "no figure"]
    assert cells(fine)[1:] == ["fine", "100", "100", "1.000"]
    only = compare(old, new, "--peer", "fin").stdout.splitlines()
    assert len(only) == 4


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "it has no samples"),
        ("a,b\n1,2\n", "KeyError"),
        (",".join(COLUMNS) + "\necho,many,0,1,ours,1,1,1,1,1,1,,,\n", "ValueError"),
        (",".join(COLUMNS) + "\necho,1\n", "is no record"),
    ],
)
def test_no_record(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        read_csv(path)
    done = compare(path, path)
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert done.stdout == ""


def test_nothing_in_common(tmp_path: Path) -> None:
    old = record(tmp_path / "old.csv", row("ours", 1, 100))
    new = record(tmp_path / "new.csv", row("ours", 1, 100, workload="other"))
    for arguments in ((old, new), (old, old, "--against", "ours"), (old, tmp_path / "missing.csv")):
        done = compare(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("bench: ")
