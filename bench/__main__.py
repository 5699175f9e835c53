"""The command of the benchmarks: `python -m bench`, in the root of the repository."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The interpreter may be one of 3.10, on which the package runs.
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit("bench: the benchmarks need Python 3.11 or newer")
    # The modules of the benchmarks are imported as `harness.*`, `models.*` and `serving.*`.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        from harness.command import main
    except ModuleNotFoundError as error:
        python = sys.executable
        sys.exit(f"bench: {error.name} is not installed: {python} -m pip install -r bench/requirements.txt")
    sys.exit(main(sys.argv[1:]))
