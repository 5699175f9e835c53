"""Server and load generator as child processes: pinned, stopped whatever happens, with the reason when they fail."""

import contextlib
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from harness.places import BINARY, ROOT

__all__ = ["GENERATOR", "Child", "ChildError", "certificate", "started"]

GENERATOR = ROOT / BINARY
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
        self._process, self._errors, self._name = process, errors, name

    def line(self, seconds: float | None = None) -> str:
        """Returns the next line of its standard output; an empty string if there is none.

        Args:
            seconds: how long the first line may take; no limit on the others, some may have come with it.
        """
        out = self._process.stdout
        assert out is not None
        if seconds is not None and not select.select([out], [], [], seconds)[0]:
            raise self.failure(f"said nothing for {seconds:g} s")
        return out.readline()

    def ask(self, seconds: float) -> str:
        """Says `count` to it, and returns the line that it answers within so many seconds."""
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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def last_error(self) -> str:
        """Returns the last line of its standard error, an empty string if there is none."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 16 * LONGEST))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip()[:LONGEST] for line in reversed(lines) if line.strip()), "")

    def failure(self, what: str) -> ChildError:
        """Returns the error that says what went wrong, with its exit status and last line of standard error."""
        if self.has_ended():
            what = f"ended with status {self._process.returncode}"
        reason = self.last_error()
        return ChildError(f"{self._name} {what}{': ' + reason if reason else ''}")


@contextlib.contextmanager
def started(command: Sequence[str], core: int | None, name: str) -> Iterator[Child]:
    """Starts a process on a core, its standard input a pipe that ends with this one, and stops it at the end.

    Raises:
        ChildError: it cannot be started.
    """
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    with tempfile.TemporaryFile() as errors:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, preexec_fn=pin)
        except OSError as error:
            raise ChildError(f"{name} cannot be started: {command[0]}: {error.strerror}") from error
        try:
            yield Child(process, errors, name)
        finally:
            process.kill()
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout)):
                stream.close()


@contextlib.contextmanager
def certificate() -> Iterator[tuple[str, str]]:
    """Makes a certificate for 127.0.0.1, valid until the block is left.

    Yields:
        The PEM file of the certificate with its key, and that of the authority.

    Raises:
        ChildError: the load generator's program, which makes it, is not there, or failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [str(GENERATOR), "certificate", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
        except OSError as error:
            raise ChildError(f"no certificate: {command[0]}: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            raise ChildError(f"no certificate: {error.stderr.strip()}") from error
        yield str(Path(folder, "server.pem")), str(Path(folder, "authority.pem"))
