"""Hostile servers, a program: ``hostile ROW`` is one, with a thread for each connection."""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from campaigns.common.handshake import acceptance
from campaigns.common.program import answer
from campaigns.common.wire import Codec
from support.frames import CLOSE, CONT, PING, TEXT

from .talking import BINARY, bomb

# A message of the maximum size, and one of twenty times that.
SMALL_BOMB, LARGE_BOMB = bomb(2**20 - 100), bomb(20 * 2**20)


class Visitor:
    """A client that has connected."""

    def __init__(self, sock: socket.socket, tally: collections.Counter[str], enough: threading.Event) -> None:
        self.sock = sock
        self.tally = tally
        self.enough = enough
        self.codec = Codec(masks=False, deflate=False)

    def request(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            more = self.sock.recv(65_536)
            if not more:
                raise ConnectionResetError
            data += more
        return data

    def accept(self, *fields: str) -> None:
        self.sock.sendall(acceptance(self.request(), *fields))
        self.tally["sessions"] += 1

    def push(self, data: bytes) -> None:
        """Sends the data repeatedly, and reads nothing, until the client has gone."""
        view = memoryview(data)
        while not self.enough.is_set():
            rest = view
            while rest and not self.enough.is_set():
                with contextlib.suppress(TimeoutError):
                    sent = self.sock.send(rest)
                    self.tally["bytes"] += sent
                    rest = rest[sent:]

    def hold(self) -> None:
        """Neither reads nor writes until the attack ends."""
        self.enough.wait()


Harm: TypeAlias = Callable[[Visitor], None]


def bombs(visitor: Visitor) -> None:
    visitor.accept("Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover")
    accepted, refused = (visitor.codec.frame(TEXT, data, rsv=4) for data in (SMALL_BOMB, LARGE_BOMB))
    visitor.push(accepted * 20 + refused)


def huge_head(visitor: Visitor) -> None:
    visitor.request()
    visitor.sock.sendall(b"HTTP/1.1 101 Welcome\r\n")
    visitor.push((b"X-Field: " + b"x" * 1_000 + b"\r\n") * 1_000)


def bytewise_head(visitor: Visitor) -> None:
    visitor.request()
    visitor.sock.sendall(b"HTTP/1.1 101 Welcome\r\nX-Field: ")
    while not visitor.enough.wait(0.01):
        visitor.sock.send(b"x")


def interims(visitor: Visitor) -> None:
    visitor.request()
    visitor.push(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 10_000)


def bodies(visitor: Visitor) -> None:
    """A refusal with an endless body."""
    visitor.request()
    visitor.sock.sendall(b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    visitor.push(b"fffe\r\n" + b"x" * 0xFFFE + b"\r\n")


def fragments(visitor: Visitor) -> None:
    codec = visitor.codec
    first = codec.frame(TEXT, b"", fin=False)
    visitor.accept()
    visitor.push((first + codec.frame(CONT, b"x", fin=False) * 4_000 + codec.frame(CONT, b"")) * 3)


def endless(visitor: Visitor) -> None:
    codec = visitor.codec
    visitor.accept()
    visitor.sock.sendall(codec.frame(TEXT, b"", fin=False))
    visitor.push(codec.frame(CONT, b"", fin=False) * 20_000)


def pings(visitor: Visitor) -> None:
    visitor.accept()
    visitor.push(visitor.codec.frame(PING, b"x" * 125) * 2_000)


def flood(visitor: Visitor) -> None:
    visitor.accept()
    visitor.push(visitor.codec.frame(BINARY, b"x" * 60_000) * 20)


def announce(visitor: Visitor) -> None:
    """Announces a message that never comes: of the maximum length, or 2**62 bytes."""
    visitor.accept()
    length = (2**20, 2**62)[visitor.tally["sessions"] % 2]
    visitor.sock.sendall(b"\x82\x7f" + length.to_bytes(8, "big") + bytes(1_000))
    visitor.hold()


def never_read(visitor: Visitor) -> None:
    visitor.accept()
    visitor.hold()


def never_close(visitor: Visitor) -> None:
    """Reads all data, but does not answer a close frame."""
    visitor.accept()
    while not visitor.enough.is_set():
        with contextlib.suppress(TimeoutError):
            if not visitor.sock.recv(65_536):
                return


def redirect(visitor: Visitor) -> None:
    port = visitor.sock.getsockname()[1]
    visitor.request()
    where = f"ws://127.0.0.1:{port}/{os.urandom(1_000).hex()}"
    visitor.sock.sendall(f"HTTP/1.1 302 Elsewhere\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n".encode())


def close_at_once(visitor: Visitor) -> None:
    """Accepts and closes immediately, or only closes."""
    if visitor.tally["connections"] % 3 == 0:
        return
    visitor.accept()
    if visitor.tally["connections"] % 3 == 1:
        visitor.sock.sendall(visitor.codec.frame(CLOSE, b"\x03\xf5again"))
    else:
        visitor.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def encrypt_nothing(visitor: Visitor) -> None:
    """Sends other bytes instead of TLS."""
    wrong = [os.urandom(5_000), b"\x16\x03\x03\xff\xff" + bytes(70_000), b"\x16\x03\x03\x00\x00" * 2_000]
    visitor.sock.recv(65_536)
    visitor.push(wrong[visitor.tally["connections"] % len(wrong)])


def main(row: str) -> None:
    from .table import harm_of

    harm = harm_of(row)
    enough = threading.Event()
    tally: collections.Counter[str] = collections.Counter()
    threads: list[threading.Thread] = []

    def visit(sock: socket.socket) -> None:
        # Sockets that their clients have closed raise errors of all kinds.
        with sock, contextlib.suppress(OSError):
            # The thread checks now and then whether the attack has ended.
            sock.settimeout(0.1)
            harm(Visitor(sock, tally, enough))
        tally["closed"] += 1

    def serve(listener: socket.socket) -> None:
        for sock in accepted(listener, enough):
            tally["connections"] += 1
            threads.append(threading.Thread(target=visit, args=[sock]))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        answer({"port": listener.getsockname()[1]})
        # One question to begin, one to end.
        sys.stdin.readline()
        sys.stdin.readline()
        enough.set()
        thread.join()
    for thread in threads:
        thread.join()
    answer(dict(tally))


def accepted(listener: socket.socket, enough: threading.Event) -> Iterator[socket.socket]:
    while not enough.is_set():
        with contextlib.suppress(TimeoutError):
            sock, _ = listener.accept()
            yield sock
