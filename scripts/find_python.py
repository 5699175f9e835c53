"""Prints the newest supported CPython on this machine that is newer than this one, or nothing."""

import glob
import os
import shutil
import subprocess
import sys

OLDEST = (3, 10)
NEWEST = (3, 15)


def version(python: str) -> tuple[int, ...] | None:
    """Version of an interpreter, None if it does not run: a pyenv shim may exist and still fail."""
    code = "import sys; print(*sys.version_info[:3]) if sys.implementation.name == 'cpython' else sys.exit(1)"
    try:
        run = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return tuple(int(part) for part in run.stdout.split())


def main() -> None:
    """Look on PATH and under pyenv."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], NEWEST[1] + 1)]
    candidates += glob.glob(f"{root}/versions/3.*/bin/python")
    found = {v: p for p in candidates if p and (v := version(p)) and OLDEST <= v[:2] <= NEWEST}
    if found and max(found)[:2] > sys.version_info[:2]:
        print(found[max(found)])


if __name__ == "__main__":
    main()
