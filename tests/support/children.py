"""Child processes that announce themselves on standard output and end when their standard input does."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Sequence

from .load_scaling import load_scaled

__all__ = ["Child"]


class Child:
    """A peer in a process of its own, stopped by its process id in bounded time.

    ``read_line`` waits for the next line of its output, in bounded time.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        # A session of its own: Ctrl-C in the terminal goes to the tests, which then stop the child.
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._collect, name="child-output", daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def read_line(self, timeout: float = 20.0) -> str:
        try:
            line = self._lines.get(timeout=load_scaled(timeout))
        except queue.Empty:
            raise TimeoutError(f"no output from {self.command[0]} in {timeout} s, or longer under load") from None
        if line is None:
            self._lines.put(None)
            raise EOFError(f"{self.command} ended with status {self.process.wait(timeout)}")
        return line

    def read_until(self, start: str, timeout: float = 20.0) -> str:
        """Returns the rest of the next line with this prefix; lines before it appear only in the error."""
        seen: list[str] = []
        while True:
            try:
                line = self.read_line(timeout)
            except (EOFError, TimeoutError) as exc:
                raise type(exc)(f"{exc}, before a line {start!r}; output: {seen}") from None
            if line.startswith(start):
                return line[len(start) :]
            seen.append(line)

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for insist in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(5)
                break
            except subprocess.TimeoutExpired:
                insist()
        self.process.wait(5)
        self._thread.join(5)
        self.process.stdout.close()

    def __enter__(self) -> Child:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
