"""Server and load generator as child processes: pinned, stopped whatever happens, with the reason when they fail."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

__all__ = ["Child", "ChildError", "started"]

# A process whose connections have just ended may need a moment to end itself.
END_SECONDS = 0.5
# Of a line that tells why.
LONGEST = 200


class ChildError(Exception):
    """What is wrong with a server or with the load on it, in one line."""


class Child:
    """A process that runs.

    Attributes:
        pid: its id.
    """

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes], name: str) -> None:
        self.pid = process.pid
        self._process = process
        self._errors = errors
        self._name = name

    def line(self, seconds: float | None = None) -> str:
        """Returns the next line of its standard output; an empty string if there is none.

        Args:
            seconds: how long the first line may take; no limit on the others, some may have come with it.

        Raises:
            ChildError: nothing came in that time.
        """
        out = self._process.stdout
        assert out is not None
        if seconds is not None and not select.select([out], [], [], seconds)[0]:
            raise self.failure(f"said nothing for {seconds:g} s")
        return out.readline()

    def ask(self, seconds: float) -> str:
        """Says `count` to it, and returns the line that it answers.

        Raises:
            ChildError: it has ended, or did not answer in that time.
        """
        into = self._process.stdin
        assert into is not None
        try:
            into.write("count\n")
            into.flush()
        except OSError as error:
            raise self.failure("was not there") from error
        return self.line(seconds)

    def has_ended(self, seconds: float = END_SECONDS) -> bool:
        """Tells whether it has ended, or does so within a moment."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_error(self) -> str:
        """Returns the last line of its standard error, an empty string if there is none."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 16 * LONGEST))
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-1:]
        return last[0][:LONGEST] if last else ""

    def failure(self, what: str) -> ChildError:
        """Returns the error that says what went wrong, with its exit status and last line of standard error."""
        status = f" with status {self._process.returncode}" if self.has_ended() else ""
        reason = self.last_error()
        return ChildError(f"{self._name} {what if not status else 'ended' + status}{': ' + reason if reason else ''}")


@contextlib.contextmanager
def started(command: Sequence[str], core: int | None, name: str) -> Iterator[Child]:
    """Starts a process on a core, its standard input a pipe that ends with this one, and stops it at the end.

    Raises:
        ChildError: it cannot be started.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=_pin(core),
            )
        except OSError as error:
            raise ChildError(f"{name} cannot be started: {command[0]}: {error.strerror}") from error
        try:
            yield Child(process, errors, name)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _pin(core: int | None) -> Callable[[], None] | None:
    return None if core is None else lambda: os.sched_setaffinity(0, {core})
