"""The runner of CI's steps: a failed, stopped or skipped step does not keep others from ending."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.wirespeed_only("it looks at the project's own scripts"),
    pytest.mark.skipif(sys.platform != "linux", reason="the runner finds the children of a command in /proc"),
]

SCRIPTS = Path(__file__).parent.parent / "scripts"

# Run as a process of its own: the runner handles signals.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, {scripts!r})
from steps import Step, run_steps, table
def step(name, code, lane="tests", **options):
    return Step(name, [sys.executable, "-c", code], lane, **options)
outcomes = run_steps([{steps}], Path("logs"), {{}})
print(table(outcomes))
for outcome in outcomes:
    print(outcome.step.name, "is", outcome.status)
"""

# Starts a child in a session of its own, which writes its number into a file, and waits.
CHILD = """
import subprocess, sys, time
code = "import os, time; open({path!r} + '.new', 'w').write(str(os.getpid()))"
code += "; os.rename({path!r} + '.new', {path!r}); time.sleep(60)"
subprocess.Popen([sys.executable, '-c', code], start_new_session=True)
time.sleep(60)
"""


def run(folder: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    code = PROGRAM.format(scripts=str(SCRIPTS), steps=", ".join(steps))
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=50, check=False
    )


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_failed_step_stops_only_the_steps_that_need_it(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "step('bad', 'raise SystemExit(3)')",
        "step('needs-it', '', needs=['bad'])",
        "step('other', '', lane='other', after=['bad'])",
    )
    assert done.stdout.splitlines()[-3:] == ["bad is failed", "needs-it is not run", "other is passed"]


def test_unselected_step_is_not_waited_for(tmp_path: Path) -> None:
    done = run(tmp_path, "step('only', '', after=['left-out'])")
    assert done.stdout.splitlines()[-1] == "only is passed", done.stderr


def test_an_error_of_the_runner_ends_the_run(tmp_path: Path) -> None:
    """The log of the first step cannot be written."""
    (tmp_path / "logs" / "first.log").mkdir(parents=True)
    done = run(tmp_path, "step('first', '')", "step('second', '', lane='other', after=['first'])")
    assert done.returncode == 1
    assert "IsADirectoryError" in done.stderr


def test_a_step_over_its_limit_ends_with_its_children(tmp_path: Path) -> None:
    """Including those in sessions of their own."""
    child = CHILD.format(path=str(tmp_path / "pid"))
    done = run(tmp_path, f"step('slow', {child!r}, limit=6)")
    assert done.stdout.splitlines()[-1] == "slow is failed", done.stderr
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
