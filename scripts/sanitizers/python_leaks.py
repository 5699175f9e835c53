"""Runs pytest, and then looks for memory that nobody refers to any more: for `scripts/sanitize.sh address python`.

The look comes before the interpreter ends: it does not give back all that it has, and what lies in modules that it has
forgotten would be told as lost. With PYTHONMALLOC=malloc the sanitizer knows each object by itself.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import traceback
import types

import pytest

__all__ = ["main"]


running: list[types.FrameType] = []
"""What runs refers to its frames, where anybody has asked for them, from memory that the sanitizer leaves out."""


def main() -> int:
    running.extend(frame for frame, _ in traceback.walk_stack(sys._getframe()))
    status = int(pytest.main(sys.argv[1:]))
    # What pytest has kept of the tests, and what only a collection ends.
    for _ in range(3):
        gc.collect()
    sys.stdout.flush()
    leaks: int = ctypes.CDLL(None).__lsan_do_recoverable_leak_check()
    if leaks:
        print("memory is lost: see above", file=sys.stderr, flush=True)
    return status or leaks


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
