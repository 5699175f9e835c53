"""Runs programs on a terminal of their own, or in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence

__all__ = ["CTRL_C", "CTRL_D", "ENTER", "UP", "Terminal", "environment"]

CTRL_C, CTRL_D, ENTER, UP = "\x03", "\x04", "\r", "\x1b[A"

# Sequences that a terminal interprets and does not display.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][0-9A-B]|\x1b[=>]|\x1b\][^\x07]*\x07")

# Makes the terminal the controlling one, which turns Ctrl-C into a signal, and executes the program.
START = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"

DEADLINE = 20.0


def environment(**variables: str | None) -> dict[str, str]:
    """Returns the environment of the tests without variables that change the output; ``None`` removes a variable."""
    changed: dict[str, str | None] = {"NO_COLOR": None, "FORCE_COLOR": None, "COLUMNS": "80", **variables}
    merged: Mapping[str, str | None] = {**os.environ, **changed}
    return {name: value for name, value in merged.items() if value is not None}


class Terminal:
    """A program whose standard streams are a terminal.

    Attributes:
        output: Its complete output.
    """

    def __init__(self, command: Sequence[str], **variables: str | None) -> None:
        self.output = ""
        self._seen = 0
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # No terminal here answers a query of the cursor position.
            env=environment(**{"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **variables}),
        )
        os.close(slave)

    @property
    def shown(self) -> str:
        """Returns the output without sequences that only move the cursor or change colors."""
        return CONTROL.sub("", self.output)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, timeout: float = DEADLINE) -> None:
        """Waits until the program prints a text, after the text that was expected before."""
        deadline = time.monotonic() + timeout
        while (found := self.shown.find(text, self._seen)) < 0:
            left = deadline - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{text!r} is not shown, but {self.shown[self._seen :]!r}")
        self._seen = found + len(text)

    def _read(self, timeout: float) -> bool:
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        # Reading from a terminal that the last program has left fails.
        with contextlib.suppress(OSError):
            data = os.read(self._master, 65_536)
            self.output += data.decode(errors="replace")
            return bool(data)
        return False

    def wait(self, timeout: float = DEADLINE) -> int:
        """Waits for the end of the program and returns its exit status."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None or select.select([self._master], [], [], 0)[0]:
            if not self._read(0.05) and self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not end; shown: {self.shown!r}")
        return self.process.wait()

    def __enter__(self) -> Terminal:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._master)
