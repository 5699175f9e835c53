"""Runs pytest, and then looks for unreachable memory, for `scripts/sanitize.sh address python`.

The check runs before the interpreter ends, because the interpreter does not free everything: objects in modules that it
has dropped would be reported as leaks. With PYTHONMALLOC=malloc the sanitizer knows each object.
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
"""Running code refers to frames that were accessed, from memory that the sanitizer does not scan."""


def main() -> int:
    running.extend(frame for frame, _ in traceback.walk_stack(sys._getframe()))
    status = int(pytest.main(sys.argv[1:]))
    # Objects that pytest has kept of the tests, and objects that only a collection frees.
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
