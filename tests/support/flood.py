"""Thousands of clients that send half of a request, in a process of their own.

A process of their own is necessary because their descriptors are as many as the server's, and because their work must
not use the server's interpreter. As a program::
    python tests/support/flood.py PORT COUNT one|many [hold|again] [head|tls|silence]

It prints ``there`` once all of them have connected and sent their half, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["flood", "raise_descriptors", "spread"]

HALVES = {
    "head": b"GET /half HTTP/1.1\r\nHost: localhost\r\nUpgrade: webso",
    # The first bytes of a record of TLS that is longer: RFC 8446, section 5.1.
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
    "silence": b"",
}

# Simultaneous connection attempts: the backlog of the system is to be full, and no SYN to be lost.
AT_ONCE = 256


def spread(index: int) -> str:
    """Returns another address of the loopback interface for each number below 65,000."""
    return f"127.77.{index // 250 % 250}.{index % 250 + 1}"


def raise_descriptors(needed: int) -> bool:
    """Raises the limit of descriptors of this process; returns whether that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        return False
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return True


class Flood:
    """A flood in its process."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def there(self) -> None:
        """Waits until all clients have connected and sent their half."""
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "there\n"


@contextlib.contextmanager
def flood(port: int, count: int, addresses: str = "one", *, again: bool = False, half: str = "head") -> Iterator[Flood]:
    """Half-open clients while the block runs. They begin when it begins.

    Args:
        port: Of the server, at 127.0.0.1.
        count: The number of clients.
        addresses: ``one`` for 127.0.0.1, ``many`` for one each.
        again: Clients that the server closes reconnect.
        half: The data that they send: one of ``HALVES``.
    """
    arguments = [str(port), str(count), addresses, "again" if again else "hold", half]
    with subprocess.Popen(
        [sys.executable, str(Path(__file__)), *arguments], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield Flood(child)
        finally:
            child.kill()


class Clients:
    def __init__(self, port: int, count: int, addresses: str, again: bool, half: bytes) -> None:
        self.target = ("127.0.0.1", port)
        self.left = list(range(count))
        self.addresses = addresses
        self.again = again
        self.half = half
        self.under_way = 0
        self.opened = 0
        self.selector = selectors.DefaultSelector()

    def start(self) -> None:
        while self.left and self.under_way < AT_ONCE:
            index = self.left.pop()
            sock = socket.socket()
            sock.setblocking(False)
            if self.addresses == "many":
                sock.bind((spread(index), 0))
            if sock.connect_ex(self.target) not in (0, errno.EINPROGRESS):
                raise SystemExit("a client cannot connect")
            self.under_way += 1
            self.selector.register(sock, selectors.EVENT_WRITE, (index, False))

    def step(self) -> None:
        self.start()
        for key, _ in self.selector.select(0.5):
            sock, (index, connected) = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            try:
                if connected:
                    if sock.recv(4096):
                        continue
                    self.end(sock, index)
                else:
                    self.under_way -= 1
                    self.opened += 1
                    if self.half:
                        sock.send(self.half)
                    self.selector.modify(sock, selectors.EVENT_READ, (index, True))
            except OSError:
                self.end(sock, index)

    def end(self, sock: socket.socket, index: int) -> None:
        self.selector.unregister(sock)
        sock.close()
        if self.again:
            self.left.append(index)


def main(port: str, count: str, addresses: str, how: str = "hold", half: str = "head") -> None:
    if not raise_descriptors(int(count) + 64):
        raise SystemExit("too few descriptors")
    clients = Clients(int(port), int(count), addresses, how == "again", HALVES[half])
    told = False
    since = time.monotonic()
    parent = os.getppid()
    while os.getppid() == parent:
        clients.step()
        if not told and not clients.left and not clients.under_way:
            told = True
            print("there", flush=True)
            print(f"{clients.opened} in {time.monotonic() - since:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
