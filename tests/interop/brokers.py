"""Brokers for tests: real servers on free ports, started here and stopped by process id, and the one in a process.

Each can be killed, started again on the same port, and paused; says what is subscribed to; and publishes as somebody
who knows nothing of wirespeed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

PATIENCE = 20.0


def wait_for(condition: Callable[[], bool], what: str = "", timeout: float = PATIENCE) -> None:
    """Wait until something is so."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what or "it did not become so"
        time.sleep(0.01)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def find(program: str) -> str:
    """Return the path of a server; without it the test is skipped, but not where all peers must be there."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        if os.environ.get("WIRESPEED_BROKERS") == "all":
            pytest.fail(f"{program} is not installed: apt-get install nats-server redis-server")
        pytest.skip(f"{program} is not installed: apt-get install nats-server redis-server")
    return path


def topics(names: Iterable[str]) -> list[str]:
    """Return the topics that engines subscribe to, sorted, without the prefix and without the internal ones."""
    ours = (name.removeprefix("wirespeed.") for name in names if name.startswith("wirespeed."))
    return sorted(name for name in ours if not name.startswith("_wirespeed"))


class Server:
    """A server that is a process."""

    def __init__(self, directory: Path, *, password: str | None = None, options: Sequence[str] = ()) -> None:
        self.directory = directory
        self.password = password
        self.options = list(options)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def command(self) -> list[str]:
        """Return how it is started."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, again, and wait until it listens."""
        with open(self.directory / f"{self.port}.log", "ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self.listens, f"{self.command()} does not listen")

    def listens(self) -> bool:
        """Whether it accepts connections."""
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / f"{self.port}.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def pause(self) -> None:
        """Stop it without ending it: its sockets stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, if it has begun."""
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()


class Nats(Server):
    """``nats-server``."""

    scheme = "nats"

    def __init__(self, directory: Path, *, password: str | None = None, options: Sequence[str] = ()) -> None:
        self.monitor = free_port()
        super().__init__(directory, password=password, options=options)

    def command(self) -> list[str]:
        login = ["--user", "user", "--pass", self.password] if self.password else []
        place = ["-a", "127.0.0.1", "-p", str(self.port), "-m", str(self.monitor)]
        return [find("nats-server"), *place, *login, *self.options]

    @property
    def url(self) -> str:
        login = f"user:{self.password}@" if self.password else ""
        return f"{self.scheme}://{login}127.0.0.1:{self.port}"

    def subscriptions(self) -> list[str]:
        """What clients subscribe to, without what brokers need for themselves, sorted."""
        place = f"http://127.0.0.1:{self.monitor}/connz?subs=1"
        with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
            found = json.load(answer)
        return topics(subject for one in found["connections"] or [] for subject in one.get("subscriptions_list", []))

    def publish(self, name: str, payload: bytes) -> None:
        """Publish as a program that knows nothing of wirespeed: under the whole name."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as client:
            client.settimeout(PATIENCE)
            said = b'CONNECT {"verbose":false}\r\nPUB %s %d\r\n%s\r\nPING\r\n'
            client.sendall(said % (name.encode(), len(payload), payload))
            heard = b""
            while b"PONG" not in heard:
                heard += client.recv(4096)

    def listen(self, name: str) -> socket.socket:
        """Subscribe, and return what has what is published from now on, as the server writes it."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % name.encode())
        heard = b""
        while b"PONG" not in heard:
            heard += client.recv(4096)
        return client


class Redis(Server):
    """``redis-server``."""

    scheme = "redis"

    def command(self) -> list[str]:
        login = ["--requirepass", self.password] if self.password else []
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)]
        return [find("redis-server"), *place, "--save", "", "--daemonize", "no", *login, *self.options]

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"{self.scheme}://{login}127.0.0.1:{self.port}"

    def say(self, *words: str | bytes) -> list[bytes]:
        """Say a command; the lines of the answer."""
        commands: list[Sequence[str | bytes]] = [words, ["PING", "END"]]
        if self.password is not None:
            commands.insert(0, ["AUTH", self.password])
        said = b""
        for command in commands:
            encoded = [word.encode() if isinstance(word, str) else word for word in command]
            said += b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as client:
            client.settimeout(PATIENCE)
            client.sendall(said)
            heard = b""
            while not heard.endswith(b"$3\r\nEND\r\n"):
                more = client.recv(65536)
                assert more, heard
                heard += more
        return heard.split(b"\r\n")[int(self.password is not None) : -3]

    def subscriptions(self) -> list[str]:
        """The channels, without what brokers need for themselves, and ``*`` for each pattern, sorted."""
        lines = self.say("PUBSUB", "CHANNELS")[1:]
        channels = topics(line.decode() for line in lines)
        patterns = int(self.say("PUBSUB", "NUMPAT")[0][1:])
        return sorted([*channels, *["*"] * patterns])

    def publish(self, name: str, payload: bytes) -> None:
        """Publish as a program that knows nothing of wirespeed: under the whole name."""
        assert self.say("PUBLISH", name, payload)[0].startswith(b":")

    def listen(self, name: str) -> socket.socket:
        """Subscribe, and return what has what is published from now on, as the server writes it."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        client.sendall(b"SUBSCRIBE %s\r\n" % name.encode())
        assert client.recv(4096).endswith(b":1\r\n")
        return client

    def listens(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(OSError, AssertionError):
            return super().listens() and bool(self.say("PING"))
        return False


class Memory:
    """The one in this process."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4()}"

    def close(self) -> None:
        """End it: nothing."""


SERVERS: dict[str, type[Nats | Redis]] = {"nats": Nats, "redis": Redis}


@contextlib.contextmanager
def broker(kind: str, directory: Path) -> Iterator[Nats | Redis | Memory]:
    """One of a kind."""
    running = Memory() if kind == "memory" else SERVERS[kind](directory)
    try:
        yield running
    finally:
        running.close()
