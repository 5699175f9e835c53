"""A peer as a child process that takes jobs and returns reports, one on each line.

It knows the format of the lines, but not the tasks of peers.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

__all__ = ["PeerError", "PeerProcess"]

# A JVM or a browser on a busy machine takes this long.
START_TIMEOUT = 45.0
STOP_TIMEOUT = 8.0


class PeerError(Exception):
    """A peer has ended, or does not answer. The text contains its standard error output."""


class PeerProcess:
    """A peer that runs. Its methods block, in bounded time, and may be called from any thread.

    Args:
        name: Its name, for errors.
        command: What to run.
        env: The environment.
        server: Whether it begins with the ports on which it listens.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], *, server: bool) -> None:
        self.name = name
        # Files that the process leaves when it is killed, such as a browser's profile, are deleted with this folder.
        self._folder = tempfile.TemporaryDirectory(prefix="interop-", ignore_cleanup_errors=True)
        # A process group of its own: Ctrl-C in the terminal is for the tests, and child processes are stopped with the
        # group.
        self.process = subprocess.Popen(
            command,
            env={**env, "TMPDIR": self._folder.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._ended = False
        self._announced: Future[dict[str, int]] = Future()
        self._expected: dict[str, Future[dict[str, Any]]] = {}
        self._complaints: collections.deque[str] = collections.deque(maxlen=40)
        self._threads = [
            threading.Thread(target=target, name=f"{name}-{target.__name__}", daemon=True)
            for target in (self._complain, self._collect)
        ]
        for thread in self._threads:
            thread.start()
        self.ports: dict[str, int] = {}
        if server:
            try:
                self.ports = self._announced.result(START_TIMEOUT)
            except FutureTimeoutError:
                self.stop()
                raise self._error(f"did not say where it listens in {START_TIMEOUT} s") from None
            except BaseException:
                self.stop()
                raise

    # Threads

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._handle(json.loads(line))
            except (ValueError, KeyError, TypeError):
                self._complaints.append(f"no report: {line.rstrip()}")
        # Its last output says why.
        self._threads[0].join(1)
        with self._lock:
            self._ended = True
            waiting = [self._announced, *self._expected.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(self._error("has ended"))

    def _handle(self, fields: dict[str, Any]) -> None:
        if "ports" in fields:
            self._announced.set_result(fields["ports"])
            return
        with self._lock:
            future = self._expected.pop(fields["id"])
        if future.set_running_or_notify_cancel():
            future.set_result(fields)

    def _complain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._complaints.append(line.rstrip())

    def _error(self, fault: str) -> PeerError:
        return PeerError("\n".join([f"{self.name} {fault}", *self._complaints]))

    # The contract

    def expect(self, number: str) -> Future[dict[str, Any]]:
        """Returns the future report of the connection with a number. To be called before the connection exists."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._ended:
                raise self._error("has ended")
            self._expected[number] = future
        return future

    def assign(self, job: str) -> None:
        """Writes a job."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(job + "\n")
            self.process.stdin.flush()
        except OSError as exc:
            raise self._error(f"takes no job: {exc}") from None

    def complaints(self) -> str:
        """The last lines of standard error output."""
        return "\n".join(self._complaints)

    # Its end

    def kill(self) -> None:
        """Ends the process and all its children by SIGKILL."""
        self._signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Ends the process: by the end of its input, or else by signals."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                self.process.wait(STOP_TIMEOUT)
                break
            except subprocess.TimeoutExpired:
                self._signal(number)
        self.process.wait(STOP_TIMEOUT)
        deadline = time.monotonic() + STOP_TIMEOUT
        for thread, stream in zip(self._threads, (self.process.stderr, self.process.stdout), strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert stream is not None
            if not thread.is_alive():
                stream.close()
        self._folder.cleanup()

    def _signal(self, number: int) -> None:
        # The process has not been waited for, so its number has not been reused.
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
