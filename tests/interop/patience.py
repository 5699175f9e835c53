"""How long to wait for what should be there already, on a machine that may have other things to do."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["patience"]


def patience(seconds: float) -> float:
    """Seconds that are enough with a processor to oneself, as seconds that are enough now.

    Twice as long where two programs want each processor. Where nothing else runs it is the same, so that a test that
    takes too long still fails. The load average alone would be too low for a minute after a machine became busy.
    """
    load = max(os.getloadavg()[0], _running())
    return seconds * max(1.0, load / (os.cpu_count() or 1))


def _running() -> int:
    """Return the number of threads that run or wait for a processor now; 0 if the system does not report it."""
    try:
        counts = Path("/proc/loadavg").read_text(encoding="ascii").split()[3]
    except OSError:
        return 0
    return int(counts.partition("/")[0])
