"""Brokers for tests: real servers on free ports, started here and stopped by process id, and the in-process one.

Each can be killed, restarted on the same port, and paused; reports its subscriptions; and publishes as a program that
does not know wirespeed.
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
    """Waits until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what or "it did not become so"
        time.sleep(0.01)


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def find(program: str) -> str:
    """Returns the path of a server; without it the test is skipped, unless all peers are required."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        if os.environ.get("WIRESPEED_BROKERS") == "all":
            pytest.fail(f"{program} is not installed: apt-get install nats-server redis-server")
        pytest.skip(f"{program} is not installed: apt-get install nats-server redis-server")
    return path


def topics(names: Iterable[str]) -> list[str]:
    """Returns the topics that engines subscribe to, sorted, without the prefix and without the internal ones."""
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
        """Returns the command that starts it."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts or restarts it, and waits until it listens."""
        with open(self.directory / f"{self.port}.log", "ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_for(self.listens, f"{self.command()} does not listen")

    def listens(self) -> bool:
        """Returns whether it accepts connections."""
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / f"{self.port}.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def pause(self) -> None:
        """Stops it without ending it: its sockets stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues it."""
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends it, if it has started."""
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
        """Returns the subscriptions of clients, without those of the broker client itself, sorted."""
        place = f"http://127.0.0.1:{self.monitor}/connz?subs=1"
        with urllib.request.urlopen(place, timeout=PATIENCE) as answer:
            found = json.load(answer)
        return topics(subject for one in found["connections"] or [] for subject in one.get("subscriptions_list", []))

    def publish(self, name: str, payload: bytes) -> None:
        """Publishes as a program that does not know wirespeed: under the whole name."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as client:
            client.settimeout(PATIENCE)
            said = b'CONNECT {"verbose":false}\r\nPUB %s %d\r\n%s\r\nPING\r\n'
            client.sendall(said % (name.encode(), len(payload), payload))
            heard = b""
            while b"PONG" not in heard:
                heard += client.recv(4096)

    def listen(self, name: str) -> socket.socket:
        """Subscribes, and returns a socket that receives messages published from now on, in the server's format."""
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
        """Sends a command; returns the lines of the answer."""
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
        """Returns the channels, without those of the broker client itself, and ``*`` for each pattern, sorted."""
        lines = self.say("PUBSUB", "CHANNELS")[1:]
        channels = topics(line.decode() for line in lines)
        patterns = int(self.say("PUBSUB", "NUMPAT")[0][1:])
        return sorted([*channels, *["*"] * patterns])

    def publish(self, name: str, payload: bytes) -> None:
        """Publishes as a program that does not know wirespeed: under the whole name."""
        assert self.say("PUBLISH", name, payload)[0].startswith(b":")

    def listen(self, name: str) -> socket.socket:
        """Subscribes, and returns a socket that receives messages published from now on, in the server's format."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        client.sendall(b"SUBSCRIBE %s\r\n" % name.encode())
        assert client.recv(4096).endswith(b":1\r\n")
        return client

    def listens(self) -> bool:
        """Returns whether it answers."""
        with contextlib.suppress(OSError, AssertionError):
            return super().listens() and bool(self.say("PING"))
        return False


class Memory:
    """The broker in this process."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4()}"

    def close(self) -> None:
        """Does nothing."""


SERVERS: dict[str, type[Nats | Redis]] = {"nats": Nats, "redis": Redis}


@contextlib.contextmanager
def broker(kind: str, directory: Path) -> Iterator[Nats | Redis | Memory]:
    """Yields a broker of one kind."""
    running = Memory() if kind == "memory" else SERVERS[kind](directory)
    try:
        yield running
    finally:
        running.close()
