"""The command line of wirespeed as a process of its own, in pipes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from .terminal import environment

__all__ = ["COMMAND", "call", "redirected", "result", "running"]

# Warnings, such as of a connection that was not closed, are part of the output that tests compare.
COMMAND = [sys.executable, "-W", "default", "-m", "wirespeed", "connect"]


def call(
    *arguments: str, stdin: bytes = b"", timeout: float = 20, **variables: str | None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env=environment(**variables),
        check=False,
    )


def result(*arguments: str, stdin: bytes = b"", **options: Any) -> tuple[int, bytes, str]:
    """Returns exit status, standard output, standard error."""
    done = call(*arguments, stdin=stdin, **options)
    return done.returncode, done.stdout, done.stderr.decode()


@contextlib.contextmanager
def running(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process that the test talks to while it runs."""
    pipe = subprocess.PIPE
    process = subprocess.Popen[bytes](
        [*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment(), **options
    )
    try:
        with process:
            yield process
            process.stdin.close()  # type: ignore[union-attr]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def redirected(redirection: str, *arguments: str) -> tuple[int, bytes, str]:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, timeout=20, env=environment(), check=False)
    return done.returncode, done.stdout, done.stderr.decode()
