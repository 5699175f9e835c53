"""The project's own echo server, ``wirespeed-bench echo``, in a process of its own.

Paths: / (echo), /blast?size=N (frames of N bytes as fast as the client reads), /sink (reads and counts), /close?code=N.
"""

from __future__ import annotations

import os
from pathlib import Path

from .children import Child

__all__ = ["NativeEcho", "find_binary", "find_sans_io"]

ROOT = Path(__file__).parents[2]

# Ends the server when the standard input ends, so that it does not outlive killed tests.
TIED = '"$@" & read -r _; kill $!; wait'


def find_binary() -> Path | None:
    """Returns the binary of WIRESPEED_BENCH, or the newest one that cargo built here."""
    given = os.environ.get("WIRESPEED_BENCH")
    if given:
        if not os.access(given, os.X_OK):
            raise FileNotFoundError(f"WIRESPEED_BENCH={given} is not an executable file")
        return Path(given)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    paths = [target / profile / "wirespeed-bench" for profile in ("release", "quick", "debug")]
    built = [path for path in paths if path.exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def find_sans_io() -> Path | None:
    """Returns ``wirespeed-sans-io``, which lies beside it."""
    binary = find_binary()
    beside = binary and binary.with_name("wirespeed-sans-io")
    return beside if beside and beside.exists() else None


class NativeEcho:
    """A running server: ``uri`` (ws), ``secure_uri`` (wss), ``ca_file`` to trust for the latter."""

    def __init__(self, binary: Path) -> None:
        self.child = Child(["sh", "-c", TIED, "sh", str(binary), "echo", "--port", "0", "--tls-port", "0"])
        self.uri = self.secure_uri = self.ca_file = ""
        try:
            while not (self.uri and self.secure_uri):
                address, *more = self.child.read_until("listening ").split(None, 1)
                if address.startswith("wss:"):
                    self.secure_uri = address.rstrip("/")
                    self.ca_file = more[0].removeprefix("ca=")
                else:
                    self.uri = address.rstrip("/")
        except BaseException:
            self.child.stop()
            raise

    def stop(self) -> None:
        self.child.stop()
