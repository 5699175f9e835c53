"""The other end of the subject: bytes and frames on a blocking socket, in either role, and the received messages."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable

from campaigns.common.handshake import acceptance
from support.frames import BINARY, CLOSE, CONT, PING, PONG, TEXT
from support.serving import request

PATIENCE = 20.0


class Gone(Exception):
    """The connection is over; ``code`` is that of the close frame, ``None`` without one."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(f"close code {code}")
        self.code = code


class Peer:
    """One end of a connection, made by hand.

    Args:
        sock: Its socket, connected.
        is_server: Its role.
        context: TLS, if there is any; the handshake is made by ``open``.
        path: The path that a client requests.

    Attributes:
        received: Messages that have arrived whole, in order.
        sent: Messages that were sent whole.
        code: That of the close frame that arrived, if one has.
    """

    def __init__(
        self, sock: socket.socket, *, is_server: bool, context: ssl.SSLContext | None = None, path: str = "/"
    ) -> None:
        sock.settimeout(PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.is_server = is_server
        self.context = context
        self.path = path
        self.received: list[bytes] = []
        self.sent: list[bytes] = []
        self.code: int | None = None
        self.has_closed = False
        # Called when a close frame has arrived, before it is answered.
        self.before_close: Callable[[], None] = lambda: None
        self._buffer = b""
        self._parts: list[bytes] = []

    def close(self) -> None:
        self.sock.close()

    # Bytes

    def write(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except TimeoutError:
            raise AssertionError("the subject does not read") from None
        except OSError as exc:
            raise Gone from exc

    def _more(self) -> None:
        try:
            data = self.sock.recv(1 << 18)
        except TimeoutError:
            raise AssertionError("nothing came from the subject") from None
        except OSError as exc:
            raise Gone from exc
        if not data:
            raise Gone
        self._buffer += data

    def _take(self, size: int) -> bytes:
        if len(self._buffer) < size:
            pieces, missing = [self._buffer], size - len(self._buffer)
            while missing > 0:
                self._buffer = b""
                self._more()
                pieces.append(self._buffer)
                missing -= len(self._buffer)
            self._buffer = b"".join(pieces)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _head(self) -> bytes:
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        return head

    # The opening handshake

    def open(self) -> None:
        if self.context is not None:
            try:
                self.sock = self.context.wrap_socket(
                    self.sock, server_side=self.is_server, server_hostname=None if self.is_server else "localhost"
                )
            except TimeoutError:
                raise AssertionError("TLS: nothing came from the subject") from None
            except OSError as exc:
                raise Gone from exc
        if self.is_server:
            self.write(acceptance(self._head()))
        else:
            self.write(request(self.path))
            head = self._head()
            assert head.startswith(b"HTTP/1.1 101 "), head

    # Frames and messages

    def encode(self, opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
        """Returns a frame; a client masks with zeros, which leaves the payload unchanged."""
        mask, bit = (b"", 0) if self.is_server else (bytes(4), 0x80)
        first = (0x80 if fin else 0) | opcode
        if len(payload) < 126:
            head = struct.pack("!BB", first, bit | len(payload))
        elif len(payload) < 65536:
            head = struct.pack("!BBH", first, bit | 126, len(payload))
        else:
            head = struct.pack("!BBQ", first, bit | 127, len(payload))
        return head + mask + payload

    def send(self, message: bytes) -> None:
        self.write(self.encode(BINARY, message))
        self.sent.append(message)

    def send_in_two(self, message: bytes, cut: int, between: Callable[[], None]) -> None:
        """Sends a message, and calls a function after this many bytes of its frame."""
        data = self.encode(BINARY, message)
        self.write(data[:cut])
        between()
        self.write(data[cut:])
        self.sent.append(message)

    def send_in_fragments(self, message: bytes, between: Callable[[], None]) -> None:
        """Sends a message in two frames, and calls a function after the first."""
        half = len(message) // 2
        self.write(self.encode(BINARY, message[:half], fin=False))
        between()
        self.write(self.encode(CONT, message[half:]))
        self.sent.append(message)

    def receive(self) -> bytes:
        """Returns the next message; pings are answered, and so is a close frame, which ends it."""
        while True:
            first, second = self._take(2)
            size = second & 127
            if size > 125:
                size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
            assert bool(second & 128) is self.is_server, "only clients mask"
            mask = self._take(4) if second & 128 else bytes(4)
            payload = self._take(size)
            if mask != bytes(4):
                key = (mask * (size // 4 + 1))[:size]
                payload = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
            opcode = first & 15
            if opcode == PING:
                self.write(self.encode(PONG, payload))
            elif opcode == CLOSE:
                self.code = int.from_bytes(payload[:2], "big") if payload else 1005
                self.before_close()
                if not self.has_closed:
                    self.has_closed = True
                    self.write(self.encode(CLOSE, payload))
                raise Gone(self.code)
            elif opcode in (TEXT, BINARY, CONT):
                self._parts.append(payload)
                if first & 128:
                    message = b"".join(self._parts)
                    self._parts.clear()
                    self.received.append(message)
                    return message

    def begin_close(self) -> None:
        self.has_closed = True
        self.write(self.encode(CLOSE, b"\x03\xe8"))

    def read_to_end(self) -> None:
        """Reads until the other end has ended its direction of TCP; a server is the first to end its own."""
        self._buffer = b""
        if self.is_server and self.code is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(Gone):
            while True:
                self._more()
                self._buffer = b""
