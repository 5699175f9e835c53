"""How long to wait for what should be there already, on a machine that may have other things to do."""

from __future__ import annotations

import os

__all__ = ["patience"]


def patience(seconds: float) -> float:
    """Seconds that are enough with a processor to oneself, as seconds that are enough now.

    Twice as long where two programs want each processor. Where nothing else runs it is the same, so that a test that
    takes too long still fails.
    """
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
