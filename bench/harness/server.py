"""The server under the load: any program that prints where it listens. Starts it, watches it, starts it again."""

import contextlib
import os
import re
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BenchError
from harness.process import child, last_line

__all__ = ["Endpoint", "Server"]

START_SECONDS = 10.0
LISTENING = re.compile(r"listening (?P<url>wss?://\S+?)/?(?: ca=(?P<ca>.+))?$")


@dataclass(frozen=True)
class Endpoint:
    """Where a peer connects: a URL, the CA to trust, the process whose CPU time is the server's."""

    url: str
    ca: str | None
    pid: int


@dataclass
class Server:
    """A server program between `start` and `stop`.

    Its standard output says `listening ws://HOST:PORT` and, if `tls`, `listening wss://HOST:PORT ca=FILE`.
    """

    command: str
    tls: bool
    cores: Collection[int] | None
    cwd: Path
    env: dict[str, str]
    _ca: str | None = None
    _urls: dict[bool, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def endpoint(self, path: str, *, tls: bool) -> Endpoint:
        """Returns where a path of the running server is."""
        assert self._process is not None
        return Endpoint(self._urls[tls] + path, self._ca if tls else None, self._process.pid)

    def failure(self) -> str | None:
        """Returns how it ended, or None while it runs."""
        if self._process is None:
            return "the server does not run"
        status = self._process.poll()
        if status is None:
            return None
        reason = last_line(self._errors)
        return f"the server ended with status {status}{f' ({reason})' if reason else ''}"

    def start(self) -> None:
        """Starts the program and waits until it listens.

        Raises:
            BenchError: it cannot be started, ends at once, or does not say in time where it listens.
        """
        arguments = shlex.split(self.command)
        if not arguments:
            raise BenchError("the server's command is empty")
        with contextlib.ExitStack() as stack:
            # A file, because nothing reads while the peers run: a pipe would fill up.
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            process = child(arguments, cwd=self.cwd, env=self.env, cores=self.cores, stderr=self._errors)
            self._process = stack.enter_context(process)
            self._wait_until_listening()
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Stops the program."""
        self._stack.close()
        self._process = None

    def _wait_until_listening(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        self._urls.clear()
        text, end = b"", time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not self._parse(text):
                remaining = end - time.monotonic()
                if remaining <= 0:
                    missing = "wss" if self.tls and False in self._urls else "ws"
                    raise BenchError(f"the server did not say within {START_SECONDS:.0f} s where {missing}:// listens")
                if selector.select(remaining):
                    data = os.read(process.stdout.fileno(), 4096)
                    if not data:
                        process.wait(START_SECONDS)
                        raise BenchError(f"{self.failure()} before it listened: {self.command}")
                    text += data

    def _parse(self, text: bytes) -> bool:
        for line in text.decode(errors="replace").splitlines(keepends=True):
            match = LISTENING.match(line.strip())
            if match and line.endswith("\n"):
                secure = match["url"].startswith("wss:")
                self._urls[secure] = match["url"]
                self._ca = match["ca"] if secure else self._ca
        return False in self._urls and (True in self._urls or not self.tls)
