"""Puts a native module that cargo has built into the source tree, and the source tree on the path of this interpreter.

    .venv/bin/python scripts/link_native.py target/quick/lib_native.so

Tests and development use the package this way: changes of Python files need no build, and one cargo command builds
every crate. A user's installation is a wheel.
"""

from __future__ import annotations

import argparse
import shutil
import sysconfig
from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1] / "python"


def main() -> None:
    """Copy the library and write the ``.pth`` file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("library", type=Path, help="the library that cargo built for this interpreter")
    library = parser.parse_args().library
    module = PACKAGES / "wirespeed" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    # Replaced atomically: a running process may have the old file mapped.
    fresh = module.with_suffix(".new")
    shutil.copyfile(library, fresh)
    fresh.replace(module)
    Path(sysconfig.get_path("purelib"), "wirespeed.pth").write_text(f"{PACKAGES}\n")


if __name__ == "__main__":
    main()
