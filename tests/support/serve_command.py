"""``wirespeed serve`` in a process of its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from .children import Child

__all__ = ["Serving"]

START = """
import os, sys, threading
os.chdir(sys.argv[1])
# As where the command is installed: the current folder is not in the path of modules.
sys.path[:] = filter(None, sys.path)
# It does not outlive tests that were killed.
threading.Thread(target=lambda: (os.read(0, 1), os._exit(9)), daemon=True).start()
from wirespeed.cli import main
sys.exit(main(sys.argv[2:]))
"""


class Serving:
    """The command as a child; ``uri`` is the address that it prints."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self.child = Child([sys.executable, "-W", "error", "-c", START, str(folder), "serve", *arguments])
        try:
            self.uri = self.child.read_until("listening on ")
        except BaseException:
            self.child.stop()
            raise

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit status."""
        self.child.process.send_signal(number)
        return self.child.process.wait(20)

    def stop(self) -> None:
        self.child.stop()

    def __enter__(self) -> Serving:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
