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
# Relative to ROOT, where the children run.
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", "target"), "release", "wirespeed-bench")
SERVER = f"{shlex.quote(str(BINARY))} echo --port 0 --tls-port 0"
