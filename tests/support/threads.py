"""Our blocking server in a thread of a test, and clients: of ``websockets``, and raw ones that break every rule."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from websockets.sync import client as websockets_client

from .checks import no_leaks
from .frames import CLOSE, Close, Frame
from .load_scaling import load_scaled
from .serving import Reply, request
from .subject import IS_WIRESPEED

__all__ = [
    "PATIENCE",
    "Raw",
    "dial",
    "echo",
    "idle",
    "native_threads",
    "no_threads_left",
    "serving",
    "uri",
    "wait_until",
]

# Longer than any wait here.
PATIENCE = 10.0


def echo(ws: Any) -> None:
    for message in ws:
        ws.send(message)


def idle(ws: Any) -> None:
    """Receives and drops messages until the connection is closed."""
    for _ in ws:
        pass


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + load_scaled(PATIENCE)
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@contextlib.contextmanager
def no_threads_left() -> Iterator[None]:
    """Checks that no thread runs after the block that did not run before it, of Python or of the native core."""
    before, native = set(threading.enumerate()), native_threads()
    yield
    wait_until(lambda: set(threading.enumerate()) <= before and native_threads() <= native)


def native_threads() -> set[int]:
    """Returns the threads of the native core, which Python does not know, where the system reports them."""
    known = {thread.native_id for thread in threading.enumerate()}
    found = set()
    for folder in Path("/proc/self/task").glob("*"):
        # One may end meanwhile.
        with contextlib.suppress(OSError):
            if (folder / "comm").read_text().startswith("wirespeed") and int(folder.name) not in known:
                found.add(int(folder.name))
    return found


@contextlib.contextmanager
def serving(handler: Callable[..., None] = echo, *where: Any, unix: bool = False, **options: Any) -> Iterator[Any]:
    """A server whose ``serve_forever`` runs; it leaves no thread and no descriptor.

    Args:
        handler: The handler.
        where: Host and port, by default of the loopback interface, or the path of a Unix socket.
        unix: Whether it is a Unix socket.
        options: Further arguments.
    """
    assert IS_WIRESPEED
    from wirespeed.sync import serve, unix_serve

    if not where and "sock" not in options:
        where = ("127.0.0.1", 0)
    with no_leaks(), no_threads_left(), (unix_serve if unix else serve)(handler, *where, **options) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(load_scaled(PATIENCE))
            assert not thread.is_alive()


def uri(server: Any, path: str = "/", *, scheme: str = "ws", host: str = "127.0.0.1") -> str:
    return f"{scheme}://{host}:{server.socket.getsockname()[1]}{path}"


def dial(where: str, **options: Any) -> Any:
    """``websockets.sync.client.connect``, without anything that would outlive a test."""
    return websockets_client.connect(where, **{"proxy": None, "ping_interval": None, "max_size": None, **options})


class Raw:
    """A client that writes bytes and reads frames. It is a context manager that closes.

    Args:
        server: Connects to its first socket, over TCP or Unix.
        receive_buffer: Size of the receive buffer, for a client that is to be slow.
    """

    def __init__(self, server: Any, *, receive_buffer: int | None = None) -> None:
        self.buffer = bytearray()
        self.sock = socket.socket(server.socket.family, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(load_scaled(PATIENCE))
            if receive_buffer is not None:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.sock.connect(server.socket.getsockname())
        except BaseException:
            self.sock.close()
            raise

    @classmethod
    def open(cls, server: Any, path: str = "/", *fields: str, **options: Any) -> Raw:
        """Connects and makes the opening handshake."""
        raw = cls(server, **options)
        try:
            raw.send(request(path, *fields))
            reply = raw.head()
            assert reply.status == 101, reply
        except BaseException:
            raw.close()
            raise
        return raw

    def __enter__(self) -> Raw:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def _more(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError
        self.buffer += data

    def take(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._more()
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def head(self) -> Reply:
        """Reads the head of a response."""
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            self._more()
        lines = self.take(end + 4)[:-4].decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        fields = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        return Reply(int(status), fields)

    def reply(self) -> Reply:
        """Reads a response and its body, up to the end of the stream."""
        reply = self.head()
        reply.body = self.rest()
        return reply

    def rest(self) -> bytes:
        """Reads up to the end of the stream."""
        with contextlib.suppress(EOFError):
            while True:
                self._more()
        return self.take(len(self.buffer))

    def frame(self) -> Frame:
        first, second = self.take(2)
        size = second & 127
        if size > 125:
            size = int.from_bytes(self.take(2 if size == 126 else 8), "big")
        assert not second & 128, "a server must not mask"
        return Frame(first & 15, self.take(size), bool(first & 128), first >> 4 & 7, masked=False)

    def until_close(self) -> tuple[list[Frame], Close | None]:
        """Reads frames up to a close frame, or the end of the stream: then there is no close frame."""
        frames = []
        try:
            while (received := self.frame()).opcode != CLOSE:
                frames.append(received)
        except (EOFError, ConnectionError):
            return frames, None
        return frames, Close.parse(received.payload)
