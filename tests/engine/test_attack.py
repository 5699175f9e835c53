"""Clients that mean harm: honest ones are served meanwhile, in time, and the server's memory stays small.

The server, the honest clients and the attack are a process each. The limits are generous, for a machine that does other
things as well; without the bounds that they look for each would be exceeded many times over.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.children import Child
from interop.patience import patience
from liveness.wire import CONT, PING, TEXT, Codec

pytestmark = [pytest.mark.wirespeed_only("websockets has no engine"), pytest.mark.timeout(180)]

HERE = Path(__file__).parent
SECONDS = 2.0

# Of an honest client, in the worst hundredth.
LATE = 0.5
# What the server may take more than before, in MiB: its limits are a tenth of that.
MORE = 120.0


def head(path: str, *fields: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *fields, "", ""]
    return "\r\n".join(lines).encode()


def dial(port: int, path: str = "/", *fields: str) -> tuple[socket.socket, bytes]:
    """A connection after its handshake, or with its refusal."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(head(path, *fields))
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65_536)
        if not more:
            break
        data += more
    return sock, data


def push(sock: socket.socket, data: bytes, seconds: float) -> bool:
    """Send as much as is taken within a time; false: the connection is over."""
    end = time.monotonic() + seconds
    view = memoryview(data)
    sock.setblocking(False)
    while view and time.monotonic() < end:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            select.select([], [sock], [], 0.05)
        except OSError:
            return False
    return True


class Several(list[socket.socket]):
    """Sockets that are closed in the end."""

    def __enter__(self) -> Several:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self:
            sock.close()


Attack = Callable[[int, int], Iterator[None]]


def breakers(port: int, _: int) -> Iterator[None]:
    """Frames that RFC 6455 forbids, and no frames at all."""
    codec = Codec(masks=True, deflate=False)
    wrong = [
        codec.frame(3, b"reserved"), codec.frame(TEXT, b"x", rsv=2), codec.frame(TEXT, b"\xff\xfe"),
        codec.frame(CONT, b"x"), codec.frame(PING, b"x" * 126), codec.frame(PING, b"x", fin=False),
        codec.frame(8, b"\x03"), b"\x81\x05hello", b"\x82\xff" + b"\xff" * 12, os.urandom(5000),
    ]  # fmt: skip
    for data in itertools.cycle(wrong):
        sock, _head = dial(port, "/")
        with sock:
            sock.sendall(data)
            sock.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(65_536):
                    pass
        yield


def bombs(port: int, _: int) -> Iterator[None]:
    """A kibibyte that becomes a mebibyte, hundreds of times in one segment, on several connections."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = deflate.compress(bytes(2**20 - 100)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    codec = Codec(masks=True, deflate=False)
    many = codec.frame(TEXT, body[:-4], rsv=4) * 250
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover"
    with Several() as socks:
        socks += [dial(port, path, offer)[0] for path in ("/", "/", "/echo")]
        for number in itertools.count():
            if not push(socks[number % 3], many, 0.2):
                socks[number % 3].close()
                socks[number % 3] = dial(port, "/", offer)[0]
            yield


def deaf(port: int, _: int) -> Iterator[None]:
    """They send what is echoed, and read nothing."""
    codec = Codec(masks=True, deflate=False)
    data = codec.frame(TEXT, b"x" * 60_000) * 20
    with Several() as socks:
        for number in itertools.count():
            socks.append(dial(port, "/echo" if number % 2 else "/")[0])
            push(socks[-1], data * 10, 0.1)
            yield


def unfinished(port: int, _: int) -> Iterator[None]:
    """They never finish the opening handshake: nothing, half of it, a byte at a time."""
    with Several() as socks:
        for number in itertools.count():
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            sock.setblocking(False)
            socks.append(sock)
            request = head("/", "X: " + "x" * 8_000)
            with contextlib.suppress(OSError):
                sock.send(request[: (0, 20, len(request) - 3)[number % 3]])
            if len(socks) > 300:
                for old in socks[::7]:
                    with contextlib.suppress(OSError):
                        old.send(b"x")
                socks.pop(0).close()
            yield


def liars(port: int, guarded: int) -> Iterator[None]:
    """A page of somebody else, tokens of all kinds that are none."""
    part = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    tokens = ["x", f"{part}.{part}.", f"{part}.{part}.{part}", "a" * 7_000, f"{part}." * 300]
    for number in itertools.count():
        token = tokens[number % len(tokens)]
        sock, data = dial(guarded, "/", f"Authorization: Bearer {token}")
        sock.close()
        assert data.startswith((b"HTTP/1.1 401", b"HTTP/1.1 403")), data
        assert token.encode() not in data or len(token) == 1
        sock, data = dial(port, "/", "Origin: https://elsewhere.example")
        sock.close()
        assert data.startswith(b"HTTP/1.1 403"), data
        yield


def storms(port: int, _: int) -> Iterator[None]:
    """They come, and are gone before anybody has looked."""
    while True:
        socks = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(50)]
        for number, sock in enumerate(socks):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 2:
                sock.sendall(head("/"))
        for sock in socks:
            sock.close()
        yield


def pings(port: int, _: int) -> Iterator[None]:
    """Thousands of pings, of which no pong is read."""
    codec = Codec(masks=True, deflate=False)
    many = codec.frame(PING, b"x" * 125) * 2_000
    with Several() as socks:
        socks += [dial(port, path)[0] for path in ("/", "/echo", "/", "/echo")]
        for number in itertools.count():
            if not push(socks[number % 4], many, 0.1):
                socks[number % 4].close()
                socks[number % 4] = dial(port, "/")[0]
            yield


def fragments(port: int, _: int) -> Iterator[None]:
    """A message that never ends, and has no content."""
    codec = Codec(masks=True, deflate=False)
    many = codec.frame(CONT, b"", fin=False) * 20_000
    while True:
        sock, _head = dial(port, "/")
        with sock:
            sock.sendall(codec.frame(TEXT, b"", fin=False))
            for _ in range(5):
                if not push(sock, many, 0.2):
                    break
                yield
        yield


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack for attack in (breakers, bombs, deaf, unfinished, liars, storms, pings, fragments)
}


def memory(pid: int, field: str) -> float:
    """What a process takes, in MiB: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field + ":"))) / 1024


def ask(server: Child, name: str) -> int:
    assert server.process.stdin is not None
    server.process.stdin.write(f"{name}\n")
    server.process.stdin.flush()
    return int(server.read_line())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is looked up where Linux has it")
@pytest.mark.parametrize("name", ATTACKS)
def test_others_are_served(name: str) -> None:
    with Child([sys.executable, str(HERE / "attacked.py")]) as server:
        port, guarded = map(int, server.read_line().split())
        # What it needs for its own.
        measure(port, 0.3)
        before = memory(server.process.pid, "VmRSS")
        honest = start_measuring(port, SECONDS)
        attack = ATTACKS[name](port, guarded)
        end = time.monotonic() + SECONDS
        steps = 0
        while time.monotonic() < end:
            next(attack)
            steps += 1
        figures = result(honest)
        most = memory(server.process.pid, "VmHWM")
        # Its sockets are closed.
        attack.close()  # type: ignore[attr-defined]
        assert steps > 3
        assert figures["problems"] == []
        assert figures["count"] > 50, figures
        assert figures["p99"] < patience(LATE), figures
        assert most - before < MORE, f"{before} MiB before, {most} at most"
        deadline = time.monotonic() + patience(10)
        while ask(server, "connections"):
            assert time.monotonic() < deadline, f"{ask(server, 'connections')} connections are left"
            time.sleep(0.05)


def start_measuring(port: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "honest.py"), str(port), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    figures: dict[str, Any] = json.loads(output)
    return figures


def measure(port: int, seconds: float) -> dict[str, Any]:
    return result(start_measuring(port, seconds))
