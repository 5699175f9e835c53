"""The soak itself: it detects a rising series, and accepts noise; and a short run."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.common.program import Program
from campaigns.soak import campaign
from campaigns.soak.lines import TOLERANCES, judge
from support.load_scaling import load_scaled

pytestmark = [pytest.mark.wirespeed_only("it is run on wirespeed"), pytest.mark.timeout(240)]

TIMES = [float(second) for second in range(240)]


def noise(seed: int, middle: float, spread: float) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(middle, spread) for _ in TIMES]


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_accepted(seed: int) -> None:
    for kind in TOLERANCES:
        assert not judge(kind, TIMES, noise(seed, 100.0, 30.0)).rises


@pytest.mark.parametrize("kind", ["memory", "descriptors", "threads", "tasks", "objects"])
@pytest.mark.parametrize("seed", range(5))
def test_leak_is_detected(kind: str, seed: int) -> None:
    """Half as much again in the time."""
    figures = [figure + 50.0 * time / TIMES[-1] for time, figure in zip(TIMES, noise(seed, 100.0, 10.0), strict=True)]
    verdict = judge(kind, TIMES, figures)
    assert verdict.rises
    assert verdict.rise == pytest.approx(31, abs=10)


def test_initial_growth_is_ignored() -> None:
    """Rises during the warm-up are ignored; so are a peak, and a falling series."""
    made = [min(time, 40.0) * 10 for time in TIMES]
    assert not judge("memory", TIMES, made).rises
    peak = [1000.0 if 150 < time < 200 else 10.0 for time in TIMES]
    assert not judge("memory", TIMES, peak).rises
    assert not judge("objects", TIMES, [1000.0 - time for time in TIMES]).rises


def soak(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "campaigns.soak", "--out", str(tmp_path), "--seed", "1", *arguments]
    folder = Path(__file__).parents[2]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=load_scaled(100), check=False, cwd=folder
    )  # fmt: skip


def test_short_run(tmp_path: Path) -> None:
    """The series are too short to judge, but every program must serve, count and end."""
    done = soak(
        tmp_path, "--minutes", "0.1", "--servers", "handlers", "engine-batches", "--clients", "tasks", "blocking"
    )  # fmt: skip
    # Series of a few seconds on a busy machine may seem to rise; other errors count.
    assert done.returncode == 0 or "RISES" in done.stderr, done.stdout + done.stderr
    assert "replies and" in done.stdout
    lines = json.loads((tmp_path / "soak.json").read_text())
    for name in ("server handlers", "server engine-batches", "client tasks", "client blocking"):
        for kind in ("memory", "descriptors", "threads"):
            times, figures = lines[f"{name} / {kind}"]
            assert len(times) == len(figures) >= 4
            assert min(figures) > 0
    assert lines["server engine-batches / latency"][1]
    assert lines["client tasks / answers"][1][-1] > 0
    assert (tmp_path / "soak.svg").read_text().count("server handlers") >= 1


def test_late_and_silent_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample is taken when all servers have answered; one that does not is reported, and delays nothing."""
    monkeypatch.setattr(campaign, "STARTING", load_scaled(20))
    with campaign.Soak(["handlers"], [], 0) as soak, socket.create_server(("127.0.0.1", 0)) as silent:
        assert soak.problems == []
        # Less than the client waits for an answer, so that nothing else is reported.
        monkeypatch.setattr(campaign, "STARTING", 2)
        program = Program("honest", "soak.honest", f"silent={silent.getsockname()[1]},/")
        try:
            soak.settle(program, {"silent"})
        finally:
            program.child.stop()
        assert len(soak.problems) == 1
        assert soak.problems[0].startswith("silent: no client got a reply")
        soak.sample()
        assert len(soak.problems) == 1
        assert soak.replies > 0
