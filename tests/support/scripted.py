"""A server that follows the script of a test: raw sockets, one thread, every wait bounded.

``ScriptedServer(script)`` listens on loopback and runs ``script(wire)`` once for each connection it accepts. An
exception of the script is raised again in the test, when the server is left; its return values are in ``results``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any

from .frames import CLOSE, Close, Frame

__all__ = ["Disconnected", "Scripted", "ScriptedServer", "Wire", "accept_key"]

# Longer than any expected wait of a test, shorter than the watchdog of the suite.
DEADLINE = 20.0


class Disconnected(Exception):
    """The client ended the TCP connection; ``reset`` if by RST."""

    def __init__(self, *, reset: bool = False) -> None:
        super().__init__("connection reset by the client" if reset else "end of stream")
        self.reset = reset


def accept_key(key: str) -> str:
    digest = hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    return base64.b64encode(digest).decode()


class Wire:
    """The server's end of one connection, as bytes and frames."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(DEADLINE)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.buffer = b""
        self.request = b""

    # Opening handshake

    def read_request(self) -> bytes:
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self._receive()
        self.request, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        return self.request

    def header(self, name: str) -> str | None:
        found = re.findall(rb"(?im)^" + name.encode() + rb":[ \t]*(.*?)[ \t]*\r?$", self.request)
        return b", ".join(found).decode() if found else None

    @property
    def key(self) -> str:
        key = self.header("Sec-WebSocket-Key")
        if key is None:
            raise ValueError("the request has no Sec-WebSocket-Key header")
        return key

    def accept_bytes(self, *headers: str) -> bytes:
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept_key(self.key)}",
            *headers,
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def accept(self, *headers: str, then: bytes = b"") -> None:
        """Reads the request and accepts it; ``then`` is sent in the same segment."""
        self.read_request()
        self.send(self.accept_bytes(*headers) + then)

    # Bytes

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            raise Disconnected(reset=True) from None

    def send_in_pieces(self, data: bytes, size: int = 1) -> None:
        for start in range(0, len(data), size):
            self.send(data[start : start + size])

    def _receive(self) -> bytes:
        try:
            data = self.sock.recv(1 << 20)
        except (ConnectionResetError, BrokenPipeError):
            raise Disconnected(reset=True) from None
        except ssl.SSLError:
            raise Disconnected from None
        if not data:
            raise Disconnected
        return data

    def read_exactly(self, size: int) -> bytes:
        if len(self.buffer) < size:
            pieces, missing = [self.buffer], size - len(self.buffer)
            while missing > 0:
                pieces.append(self._receive())
                missing -= len(pieces[-1])
            self.buffer = b"".join(pieces)
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def read_to_end(self) -> bytes:
        """Reads until the client ends the TCP connection."""
        with contextlib.suppress(Disconnected):
            while True:
                self.buffer += self._receive()
        data, self.buffer = self.buffer, b""
        return data

    # Frames

    def read_frame(self) -> Frame:
        first, second = self.read_exactly(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self.read_exactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self.read_exactly(8))
        masked = bool(second & 0x80)
        mask = self.read_exactly(4) if masked else bytes(4)
        data = self.read_exactly(length)
        key = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
        payload = (int.from_bytes(data, "big") ^ key).to_bytes(length, "big")
        return Frame(first & 0xF, payload, bool(first & 0x80), first >> 4 & 7, masked)

    def read_until_close(self) -> tuple[list[Frame], Close | None]:
        """Reads frames until the client's close frame or the end of the stream."""
        frames: list[Frame] = []
        try:
            while True:
                frame = self.read_frame()
                if frame.opcode == CLOSE:
                    return frames, Close.parse(frame.payload)
                frames.append(frame)
        except Disconnected:
            return frames, None

    # The end

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Ends the connection with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()


class ScriptedServer:
    """Listens on loopback, or on a Unix socket, and runs a script for each connection, one after the other."""

    def __init__(
        self,
        script: Callable[[Wire], Any],
        *,
        ssl_context: ssl.SSLContext | None = None,
        unix_path: str | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.script = script
        self.ssl_context = ssl_context
        self.results: list[Any] = []
        self.error: BaseException | None = None
        # For scripts that wait for the test, and tests that wait for the script.
        self.release = threading.Event()
        self.reached = threading.Event()
        if unix_path is None:
            self.listener = socket.socket()
        else:
            self.listener = socket.socket(socket.AF_UNIX)
        if receive_buffer is not None:
            # Accepted sockets inherit it.
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.listener.bind(("127.0.0.1", 0) if unix_path is None else unix_path)
        self.listener.listen()
        if unix_path is None:
            self.host, self.port = self.listener.getsockname()
        self.stopping = False
        self.current: socket.socket | None = None
        self.thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)

    @property
    def uri(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"

    @property
    def secure_uri(self) -> str:
        return f"wss://localhost:{self.port}/"

    @property
    def result(self) -> Any:
        """Waits for the only connection's script and returns its result."""
        self.join()
        if len(self.results) != 1:
            raise AssertionError(f"the script ran {len(self.results)} times, not once")
        return self.results[0]

    async def wait_result(self) -> Any:
        """Returns ``result`` once the script has ended, without blocking the event loop."""
        self._stop_accepting()
        while self.thread.is_alive():
            await asyncio.sleep(0.001)
        return self.result

    def pause(self) -> None:
        """For scripts: notifies the test that this point is reached, and waits until the test sets ``release``."""
        self.reached.set()
        if not self.release.wait(DEADLINE):
            raise TimeoutError("the test did not release the script")

    def wait_reached(self) -> None:
        if not self.reached.wait(DEADLINE):
            raise TimeoutError("the script did not reach its pause")

    def _run(self) -> None:
        while not self.stopping:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            if self.stopping:
                sock.close()
                return
            self.current = sock
            try:
                if self.ssl_context is not None:
                    sock.settimeout(DEADLINE)
                    try:
                        sock = self.current = self.ssl_context.wrap_socket(sock, server_side=True)
                    except OSError as exc:
                        self.results.append(exc)
                        continue
                self.results.append(self.script(Wire(sock)))
            except Disconnected as exc:
                self.results.append(exc)
            except BaseException as exc:
                self.error = exc
                return
            finally:
                sock.close()

    def __enter__(self) -> ScriptedServer:  # noqa: PYI034 - typing.Self needs Python 3.11
        self.thread.start()
        return self

    def join(self) -> None:
        """Stops accepting, waits for the script in progress, and raises its exception."""
        self._stop_accepting()
        self.thread.join(DEADLINE + 5)
        self.listener.close()
        if self.thread.is_alive():
            raise TimeoutError("the script did not end")
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def _stop_accepting(self) -> None:
        if not self.stopping:
            self.stopping = True
            # Wakes accept(), which closing the descriptor does not.
            with contextlib.suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Ends a script that does not end by itself: a test that needed its result has requested it."""
        self.release.set()
        self.stopping = True
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(1)
        if self.thread.is_alive() and self.current is not None:
            with contextlib.suppress(OSError):
                self.current.shutdown(socket.SHUT_RDWR)
        self.join()

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        if exc is None:
            self.release.set()
            self.join()
        else:
            # Does not hide the exception of the test.
            with contextlib.suppress(BaseException):
                self.stop()


# The fixture ``scripted``.
Scripted = Callable[..., ScriptedServer]
