"""Compiles the callbacks: `build.py COMPILER FOLDER`. What is missing for that is written to FOLDER/missing."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent


def missing() -> str | None:
    """Returns what is not installed."""
    for module, distribution in (("picows", "picows"), ("Cython", "cython")):
        if importlib.util.find_spec(module) is None:
            return f"{distribution} is not installed for {sys.executable}"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"the header Python.h of {sys.executable} is not there: apt-get install python3-dev"
    return None


def main() -> None:
    """Fills the folder with the program and the extension that it imports."""
    compiler, folder = sys.argv[1], Path(sys.argv[2])
    shutil.copy(HERE / "peer.py", folder)
    reason = missing()
    if reason is not None:
        (folder / "missing").write_text(reason)
        return
    source = folder / "listeners.c"
    subprocess.run([sys.executable, "-m", "cython", "-3", "-o", source, HERE / "listeners.pyx"], check=True)
    extension = folder / f"listeners{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", include, "-o", extension, source], check=True)


if __name__ == "__main__":
    main()
