"""Clients on raw sockets, all in one thread: they read on command, and record what arrives."""

from __future__ import annotations

import contextlib
import queue
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from campaigns.common.handshake import fresh_request
from campaigns.common.wire import Codec
from support.frames import CLOSE, PING, TEXT, Close

from .record import Record, Seen, make, read

__all__ = ["Clients"]

_PATIENCE = 20.0
_SLOW = 3_000
_CHUNK = 65_536


class _Client:
    """One client.

    Args:
        sock: After the handshake, with the bytes that followed it.
    """

    def __init__(self, sock: socket.socket, seen: Seen, codec: Codec, early: bytes) -> None:
        self.sock = sock
        self.seen = seen
        self.codec = codec
        self.pace = "fast"
        self.output = bytearray()
        self.closing = False
        self.over = False
        self.take(early)

    def take(self, data: bytes) -> None:
        try:
            for frame in self.codec.feed(data):
                if frame.opcode == CLOSE:
                    self.seen.close = Close.parse(frame.payload).code
                    if not self.closing:
                        self.output += self.codec.frame(CLOSE, frame.payload[:2])
                    self.closing = True
                elif frame.opcode < CLOSE:
                    message = self.codec.assemble(frame)
                    if message is not None:
                        self.seen.received.append(read(message))
        except Exception as exc:
            self.seen.problems.append(f"{type(exc).__name__}: {exc}")
            self.end("broke")

    def end(self, how: str) -> None:
        if not self.over:
            self.over = True
            self.seen.ended = how
            self.sock.close()

    def read(self) -> None:
        try:
            data = self.sock.recv(_SLOW if self.pace == "slow" else _CHUNK)
        except BlockingIOError:
            return
        except OSError as exc:
            self.end(type(exc).__name__)
            return
        if data:
            self.take(data)
        else:
            self.end("eof")

    def write(self) -> None:
        try:
            sent = self.sock.send(self.output)
        except BlockingIOError:
            return
        except OSError:
            # Earlier data may still be read.
            self.output.clear()
            return
        del self.output[:sent]


class Clients:
    """The thread. Other threads call its methods.

    Args:
        record: The record of events.
        address: Host and port of the engine.
        deflate: Whether to offer permessage-deflate.
    """

    def __init__(self, record: Record, address: tuple[str, int], *, deflate: bool) -> None:
        self._record = record
        self._address = address
        self._deflate = deflate
        self._clients: dict[int, _Client] = {}
        self._orders: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="clients", daemon=True)
        self._thread.start()

    def do(self, verb: str, more: dict[str, Any]) -> None:
        """Executes a step, and waits until it is done."""
        done = threading.Event()

        def order() -> None:
            try:
                self._do(verb, **more)
            finally:
                done.set()

        self._orders.put(order)
        self._theirs.send(b"x")
        if not done.wait(_PATIENCE):
            self._record.complaints.append(f"the clients do not get on: {verb}")

    def stop(self) -> None:
        """Ends the thread; all sockets are closed."""
        self._over = True
        with contextlib.suppress(OSError):
            self._theirs.send(b"x")
        self._thread.join(_PATIENCE)

    # In the thread

    def _run(self) -> None:
        try:
            while not self._over:
                self._turn()
        except Exception as exc:
            self._record.complaints.append(f"the clients have ended with {exc!r}")
        finally:
            for client in self._clients.values():
                client.end("left")
            self._ours.close()
            self._theirs.close()

    def _turn(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ours, selectors.EVENT_READ)
            for client in self._clients.values():
                if client.over:
                    continue
                events = (selectors.EVENT_READ if client.pace != "paused" else 0) | (
                    selectors.EVENT_WRITE if client.output else 0
                )
                if events:
                    selector.register(client.sock, events, client)
            for key, events in selector.select(0.5):
                client = key.data
                if client is None:
                    with contextlib.suppress(BlockingIOError):
                        self._ours.recv(1)
                    continue
                if events & selectors.EVENT_WRITE:
                    client.write()
                if events & selectors.EVENT_READ and not client.over:
                    client.read()
            if any(client.pace == "slow" for client in self._clients.values()):
                time.sleep(0.0005)
        with contextlib.suppress(queue.Empty):
            while True:
                self._orders.get_nowait()()

    def _do(self, verb: str, client: int = 0, count: int = 0, size: int = 0, seconds: float = 0.0) -> None:
        if verb == "nap":
            return time.sleep(seconds)
        if verb == "connect":
            return self._connect(client, early=False)
        if verb == "early":
            return self._connect(client, early=True)
        if verb == "read":
            for each in self._clients.values():
                each.pace = "fast"
            return None
        one = self._clients.get(client)
        if one is None or one.over:
            return None
        match verb:
            case "pause":
                one.pace = "paused"
            case "resume":
                one.pace = "fast"
            case "slow":
                one.pace = "slow"
            case "say" if not one.closing:
                for _ in range(count):
                    message = make((client, one.seen.said), size, text=True)
                    assert isinstance(message, str)
                    one.output += one.codec.message([message.encode()], text=True)
                    one.seen.said += 1
            case "ping" if not one.closing:
                one.output += one.codec.frame(PING, b"ping")
            case "close":
                one.seen.left = True
                if not one.closing:
                    one.output += one.codec.frame(CLOSE, struct.pack("!H", 1000))
                one.closing = True
            case "reset":
                one.seen.left = True
                one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.end("reset")
            case "vanish":
                one.seen.left = True
                one.end("vanished")
        return None

    def _connect(self, index: int, *, early: bool) -> None:
        seen = self._record.seen[index] = Seen(index, early)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        # With the segments of 64 KiB of the loopback, small windows open only at timer intervals.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1_000)
        try:
            sock.settimeout(_PATIENCE)
            sock.connect(self._address)
            extensions = ["Sec-WebSocket-Extensions: permessage-deflate"] if self._deflate else []
            sock.sendall(fresh_request(f"/c/{index}", *extensions))
            data = b""
            while b"\r\n\r\n" not in data:
                # While the event queue is full no client is admitted, and the consumer of events may wait for this
                # thread.
                ready, _, _ = select.select([sock], [], [], _PATIENCE)
                more = sock.recv(4096) if ready else b""
                if not more:
                    raise EOFError("no answer")
                data += more
            sock.setblocking(False)
        except (OSError, EOFError) as exc:
            seen.ended = f"not connected: {type(exc).__name__}"
            sock.close()
            return
        _, _, rest = data.partition(b"\r\n\r\n")
        codec = Codec(masks=True, deflate=self._deflate)
        self._clients[index] = _Client(sock, seen, codec, rest)


assert TEXT == 1
