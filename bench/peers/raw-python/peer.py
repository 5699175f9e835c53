"""Sockets of the standard library that move prepared frames: the limit of pure Python, and the only limit over TLS.

No WebSocket library: frames are built before the clock runs, masks included, and replies are expected byte by byte.
"""

from __future__ import annotations

import os
import socket
import struct
from urllib.parse import urlsplit

from models.connection import Client, Connection, tls_context
from models.peer import main
from models.program import Library

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


def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects; every reply is taken to be one binary frame of `size` bytes of payload."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), int(parts.port or 0)
    sock = socket.create_connection((host, port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = tls_context(url, ca)
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname=host)
    sock.settimeout(None)

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
        return exactly(exactly(2)[1])

    sock.sendall(
        f"GET {parts._replace(scheme='', netloc='').geturl() or '/'} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    # Byte by byte, so that no frame behind the head is taken.
    while not head.endswith(b"\r\n\r\n"):
        head += exactly(1)
    if b" 101 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"the server refused the handshake: {head[:80]!r}")
    return Connection(
        sock,
        # The socket blocks: sendall is one system call, and the loop for the rest is C.
        send=sock.sendall,
        recv=recv,
        report=report,
        frame=lambda message: frame(BINARY, message, mask=True),
        encode=lambda message: frame(BINARY, message, mask=False),
    )


if __name__ == "__main__":
    workloads = ("round-trip", "send", "send-each", "one-way", "one-way-window")
    main(Library("ssl", None), Client(connect, only=workloads))
