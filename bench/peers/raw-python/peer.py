"""Sockets of the standard library that move prepared frames: the limit of pure Python, and the only limit over TLS.

No WebSocket library: frames are built before the clock runs, masks included, and replies are expected byte by byte.
"""

from __future__ import annotations

import os
import socket
import struct
from urllib.parse import urlsplit

from models.blocking import Blocking, main
from models.tls import tls_context

TEXT, BINARY = 0x81, 0x82


def frame(opcode: int, payload: bytes, *, mask: bool) -> bytes:
    """Returns one complete frame."""
    bit, length = 0x80 if mask else 0, len(payload)
    if length < 126:
        head = struct.pack("!BB", opcode, bit | length)
    elif length < 65536:
        head = struct.pack("!BBH", opcode, bit | 126, length)
    else:
        head = struct.pack("!BBQ", opcode, bit | 127, length)
    if not mask:
        return head + payload
    key = os.urandom(4)
    stream = key * (length // 4 + 1)
    masked = int.from_bytes(payload, "little") ^ int.from_bytes(stream[:length], "little")
    return head + key + masked.to_bytes(length, "little")


def handshake(sock: socket.socket, host: str, target: str) -> None:
    """Upgrades the connection."""
    sock.sendall(
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    # Byte by byte, so that no frame behind the head is taken.
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("the server closed the connection during the handshake")
        head += byte
    if b" 101 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"the server refused the handshake: {head[:80]!r}")


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects; every reply is taken to be one binary frame of `size` bytes of payload."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), int(parts.port or 0)
    sock = socket.create_connection((host, port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme == "wss":
        sock = tls_context(ca).wrap_socket(sock, server_hostname=host)
    sock.settimeout(None)
    handshake(sock, f"{host}:{port}", f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}")

    reply = bytearray(len(frame(BINARY, bytes(size), mask=False)))
    whole, view, recv_into = len(reply), memoryview(reply), sock.recv_into

    def recv() -> bytearray:
        received = recv_into(reply)
        while received < whole:
            more = recv_into(view[received:])
            if not more:
                raise ConnectionError("the server closed the connection")
            received += more
        return reply

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = sock.recv(count - len(data))
            if not more:
                raise ConnectionError("the server closed the connection")
            data += more
        return data

    def report() -> bytes:
        sock.sendall(frame(TEXT, b"report", mask=True))
        head = exactly(2)
        return exactly(head[1])

    return Blocking(
        # The socket blocks: sendall is one system call, and the loop for the rest is C.
        send=sock.sendall,
        recv=recv,
        report=report,
        encode=lambda message: (frame(BINARY, message, mask=True), frame(BINARY, message, mask=False)),
    )


if __name__ == "__main__":
    workloads = ("round-trip", "send", "send-each", "one-way", "one-way-window", "processes")
    main("ssl", None, connect, workloads=workloads)
