"""Child processes: started in a session of their own, pinned, stopped by their process id whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

from harness.errors import BenchError

__all__ = ["child", "environment", "output_of", "pinned", "raise_descriptor_limit"]

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
    stderr: IO[bytes] | int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program whose standard output is a pipe, and stops it when the block is left.

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
                stdin=subprocess.DEVNULL,
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


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
