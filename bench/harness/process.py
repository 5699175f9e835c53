"""Child processes: started in a session of their own, pinned, stopped by their process id whatever happens."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

from harness.errors import BenchError

__all__ = ["Forking", "child", "environment", "last_line", "output_of", "pinned", "raise_descriptor_limit", "terminate"]

STOP_SECONDS = 3.0


@contextlib.contextmanager
def pinned(cores: Collection[int] | None) -> Iterator[None]:
    """Runs this process on some cores, so that a child started meanwhile has all its threads there."""
    if cores is None or sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_descriptor_limit() -> None:
    """Lets the children, the server among them, open as many files as this system allows; no failure if it does not."""
    if sys.platform == "linux":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def environment(bench: Path) -> dict[str, str]:
    """Returns the environment of the children: ours, the peers importable, no proxy between client and server."""
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    paths = [str(bench), *filter(None, [variables.get("PYTHONPATH")])]
    return variables | {"PYTHONPATH": os.pathsep.join(paths)}


def output_of(command: Sequence[str]) -> str | None:
    """Returns what a short command prints; None if it is not there, or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@contextlib.contextmanager
def child(
    command: Sequence[str],
    *,
    cwd: Path,
    env: dict[str, str],
    cores: Collection[int] | None = None,
    stdin: int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program whose standard output is a pipe; stops it and those that it started when the block is left.

    Raises:
        BenchError: it cannot be started.
    """
    try:
        with pinned(cores):
            # A session of its own: Ctrl-C reaches the harness alone, which then stops its children in order.
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        raise BenchError(f"cannot start {command[0]}: {error.strerror}") from error
    try:
        yield process
    finally:
        _stop(process)


def terminate(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """Sends a signal to a child and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if process.poll() != 0:
        # Also those that a program which was killed has left.
        terminate(process)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            terminate(process, signal.SIGKILL)
            process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def last_line(errors: IO[bytes]) -> str:
    """Returns the last line of a file, at most 200 characters of it."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "")


class Forking:
    """A program that has loaded what it needs and runs once for each list of options, in a process that it forks."""

    def __init__(self, command: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
        """Starts it.

        Raises:
            BenchError: it cannot be started.
        """
        self.runs = 0
        with contextlib.ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            process = child([*command, "--forks"], cwd=cwd, env=env, stdin=subprocess.PIPE, stderr=self._errors)
            self.process = stack.enter_context(process)
            self.stop = stack.pop_all().close

    def run(self, options: Sequence[str], deadline: float) -> tuple[int, bytes, str]:
        """Runs it once; returns its exit status, what it has printed, and the last line of its standard error.

        Raises:
            BenchError: it has not ended in so many seconds.
        """
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        self.runs += 1
        self._errors.seek(0)
        self._errors.truncate()
        lines, end = [b""], time.monotonic() + deadline
        with contextlib.suppress(BrokenPipeError):
            into.write(json.dumps(list(options)).encode() + b"\n")
            into.flush()
        # The line that says how it has ended is the last one.
        while not (lines[-1] == b"" and len(lines) > 1 and lines[-2].startswith(b'{"ended": ')):
            if not select.select([out], [], [], max(0.0, end - time.monotonic()))[0]:
                raise BenchError(f"no result within {deadline:.0f} s")
            data = os.read(out.fileno(), 1 << 16)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_SECONDS)
                return self.process.returncode or 1, b"\n".join(lines), last_line(self._errors)
            lines = (b"\n".join(lines) + data).split(b"\n")
        return json.loads(lines[-2])["ended"], b"\n".join(lines[:-2]), last_line(self._errors)
