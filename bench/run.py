"""The benchmarks without an installed wirespeed: `python bench/run.py list`, `run`, `report`, `compare`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from harness.command import main
    except ModuleNotFoundError as error:
        sys.exit(f'bench: {error.name} is not installed for {sys.executable}: pip install "wirespeed[bench]"')
    sys.exit(main(sys.argv[1:], "bench/run.py"))
