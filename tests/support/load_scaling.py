"""Scales time limits of tests on a busy machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["load_scaled"]


def load_scaled(seconds: float) -> float:
    """Scales a time limit, which is sufficient on an idle machine, to the current load.

    It doubles where two programs want each processor. On an idle machine it is unchanged, so that a test that takes too
    long still fails. The load average alone would be too low for a minute after a machine became busy.
    """
    load = max(os.getloadavg()[0], _running())
    return seconds * max(1.0, load / (os.cpu_count() or 1))


def _running() -> int:
    """Returns the number of threads that run or wait for a processor now; 0 if the system does not report it."""
    try:
        counts = Path("/proc/loadavg").read_text(encoding="ascii").split()[3]
    except OSError:
        return 0
    return int(counts.partition("/")[0])
