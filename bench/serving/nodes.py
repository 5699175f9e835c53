"""Two servers that pass on to each other what is published: the broker between them, and the cores of all of them."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from serving.process import Child, ChildError, started

__all__ = ["NODES", "Cores", "broker", "broker_version"]

NODES = 2
# How long a broker may take until it listens.
START_SECONDS = 10.0
# By the scheme of its URL: the program, which is also its Debian package, and its options.
PROGRAMS = {
    "nats": ("nats-server", ["-a", "127.0.0.1", "-p"]),
    "redis": ("redis-server", ["--bind", "127.0.0.1", "--save", "", "--loglevel", "warning", "--port"]),
}


@dataclass(frozen=True)
class Cores:
    """The cores of each process."""

    load: int
    engines: tuple[int, ...]
    broker: int

    @classmethod
    def spread(cls, load: int, servers: Collection[int]) -> Cores:
        """Gives the engines a core each of those for servers, as far as there are, and the broker the next one.

        If there is none for it, it shares that of the engines: the load, which looks at everything, needs its own.
        """
        cores = sorted(servers)
        engines = tuple(cores[number % len(cores)] for number in range(NODES))
        return cls(load, engines, cores[NODES % len(cores)])

    def shared(self, *, broker: bool) -> float:
        """Returns how many processes there are for each core, with the broker or without one."""
        all_of_them = [self.load, *self.engines, *([self.broker] if broker else [])]
        return len(all_of_them) / len(set(all_of_them))


def broker_version(kind: str) -> str:
    """Returns name and version of a broker.

    Raises:
        ChildError: it is not installed.
    """
    program = PROGRAMS[kind][0]
    said = subprocess.run([_find(program), "--version"], capture_output=True, text=True, timeout=10, check=False)
    match = re.search(r"v=?(\d[\w.]*)", said.stdout)
    return f"{program} {match[1] if match else 'of an unknown version'}"


@contextlib.contextmanager
def broker(kind: str, core: int | None) -> Iterator[tuple[str, Child]]:
    """Starts a broker on a free port, and stops it at the end; its URL, and the process.

    Raises:
        ChildError: it is not installed, or does not listen.
    """
    program, options = PROGRAMS[kind]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with started([_find(program), *options, str(port)], core, "the broker") as child:
        end = time.monotonic() + START_SECONDS
        while not _listens(port):
            if child.has_ended(0.02) or time.monotonic() > end:
                raise child.failure("did not listen")
        yield f"{kind}://127.0.0.1:{port}", child


def _find(program: str) -> str:
    # Debian has servers where only root looks.
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise ChildError(f"{program} is not installed: apt-get install {program}")
    return path


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
