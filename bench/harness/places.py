"""Where things are: the suite, the clone around it, what is built, what is kept."""

import os
import shlex
from pathlib import Path

__all__ = ["BENCH", "BINARY", "BUILD", "RECORDS", "REPORT", "ROOT", "SCENARIOS", "SERVER", "UNFINISHED"]

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
SCENARIOS = BENCH / "scenarios"
RECORDS = BENCH / "records"
# What peers compile, and records in the making: git ignores it, `make clean` removes it.
BUILD = ROOT / "build" / "bench"
UNFINISHED = BUILD / "unfinished"
REPORT = ROOT / "build" / "bench-report"


def _binary() -> Path:
    """Returns the echo server and load generator: WIRESPEED_BENCH, or the newest optimised build; relative to ROOT."""
    if given := os.environ.get("WIRESPEED_BENCH"):
        return Path(given)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    release, quick = (target / profile / "wirespeed-bench" for profile in ("release", "quick"))
    built = [path for path in (release, quick) if (ROOT / path).exists()]
    return max(built, key=lambda path: (ROOT / path).stat().st_mtime, default=release)


BINARY = _binary()
# The children run in ROOT.
SERVER = f"{shlex.quote(str(BINARY))} echo --port 0 --tls-port 0"
