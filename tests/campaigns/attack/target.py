"""Helpers of all attacks: connections to the attacked server, and counts of their outcomes."""

from __future__ import annotations

import collections
import itertools
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from campaigns.common.handshake import fresh_request as head
from campaigns.common.wire import Codec
from support.flood import spread

# Credentials that the attacked engine requires.
SECRET = "a secret of at least thirty-two bytes"
METRICS_TOKEN = "who-may-look-at-the-metrics"
PAGE_TOKEN = "who-may-look-at-the-page-and-end-sessions"

# Sessions of an address on its port ``limited``, and messages in a second at the paths with limits.
PER_ADDRESS = 20
RATE = 500

# Seconds that attacked servers allow for an opening, and for a closing handshake.
OPEN_TIMEOUT = 2.0
CLOSE_TIMEOUT = 1.0

# Longer than any answer of a working server.
LONG = 20.0


class Target:
    """An attacked server.

    Args:
        kind: The kind of server.
        port: The attacked one of its ports.
    """

    def __init__(self, kind: str, port: int) -> None:
        self.kind = kind
        self.port = port
        self.tally: collections.Counter[str] = collections.Counter()
        self.codec = Codec(masks=True, deflate=False)
        self._hosts = itertools.count()

    def connect(self, host: str | None = None) -> socket.socket:
        """Opens a TCP connection, from an address if it is given."""
        sock = socket.socket()
        try:
            sock.settimeout(LONG)
            if host is not None:
                sock.bind((host, 0))
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        self.tally["connections"] += 1
        return sock

    def another_host(self) -> str:
        """Returns an address that was not used for a long time."""
        return spread(next(self._hosts) % 60_000)

    def ask(self, sock: socket.socket, request: bytes) -> bytes:
        """Returns the head of the response to a request, or the received part."""
        data = b""
        try:
            sock.sendall(request)
            while b"\r\n\r\n" not in data and (more := sock.recv(65_536)):
                data += more
        except (ConnectionResetError, BrokenPipeError):
            pass
        self.tally["sessions" if data.startswith(b"HTTP/1.1 101") else "refused"] += 1
        return data

    def dial(self, path: str = "/", *fields: str, host: str | None = None) -> socket.socket:
        """Returns a connection after its handshake, or with its refusal."""
        sock = self.connect(host)
        self.ask(sock, head(path, *fields))
        return sock

    def push(self, sock: socket.socket, data: bytes, seconds: float) -> bool:
        """Sends as much as possible within a time; false: the connection is over, and counted."""
        end = time.monotonic() + seconds
        view = memoryview(data)
        sock.setblocking(False)
        while view and time.monotonic() < end:
            try:
                sent = sock.send(view)
                self.tally["bytes"] += sent
                view = view[sent:]
            except BlockingIOError:
                select.select([], [sock], [], max(0.0, min(0.05, end - time.monotonic())))
            except OSError:
                self.tally["closed"] += 1
                return False
        return True

    def read_out(self, sock: socket.socket) -> int:
        """Reads until the server has closed; returns the number of bytes."""
        sock.settimeout(LONG)
        count = 0
        try:
            while more := sock.recv(65_536):
                count += len(more)
        except ConnectionResetError:
            pass
        self.tally["closed"] += 1
        return count


class Several(list[socket.socket]):
    """Sockets that are closed at the end."""

    def __enter__(self) -> Several:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self:
            sock.close()

    def reap(self, target: Target) -> None:
        """Closes and counts the sockets that the server has closed; unread data is not read."""
        poll = select.poll()
        by_number = {sock.fileno(): sock for sock in self}
        for number in by_number:
            poll.register(number, select.POLLRDHUP)
        for number, _ in poll.poll(0):
            sock = by_number[number]
            self.remove(sock)
            sock.close()
            target.tally["closed"] += 1

    def renew(self, number: int, sock: socket.socket) -> None:
        """Replaces one socket."""
        self[number].close()
        self[number] = sock


def reset(sock: socket.socket) -> None:
    """Closes so that the server gets a reset instead of the end of the stream."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


Attack: TypeAlias = Callable[[Target], Iterator[None]]
"""An endless generator that makes one step at a time."""
