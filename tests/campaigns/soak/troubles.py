"""Misbehaving peers, a program: ``troubles SEED [PORT,PATH ...]``.

As a server it announces its port, and answers handshakes and messages by the tables of faults, or not at all. As
clients it connects to each of the others' ports, sends forbidden data, leaves in the middle, stays silent or does not
read.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from campaigns.common.handshake import fresh_request
from campaigns.common.program import answer as announce
from campaigns.common.program import serve_in_thread
from campaigns.common.wire import Codec
from support.faults import FRAME_FAULTS, HANDSHAKE_FAULTS, ODDITIES, FrameFault, Oddity
from support.frames import PING, TEXT
from support.scripted import Disconnected, Wire

# Of clients and of the server each.
AT_ONCE = 8
STAYS = 3.0


def leave(sock: socket.socket, chance: random.Random) -> None:
    """Leaves, by a reset or not."""
    if chance.random() < 0.5:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def answer(sock: socket.socket, chance: random.Random) -> None:
    """Acts as a server to one client."""
    wire = Wire(sock)
    sock.settimeout(STAYS)
    way = chance.random()
    if way < 0.3:
        chance.choice(HANDSHAKE_FAULTS).answer(wire)
        return
    fault: FrameFault | Oddity = chance.choice(ODDITIES) if way < 0.5 else chance.choice(FRAME_FAULTS)
    wire.accept(*([fault.extension] if fault.extension else []))
    if chance.random() < 0.2:
        return
    if chance.random() < 0.3:
        wire.send_in_pieces(fault.data[:200])
    wire.send(fault.data)
    if chance.random() < 0.5:
        wire.read_until_close()
    if chance.random() < 0.5:
        wire.half_close()
        wire.read_to_end()


def serve(listener: socket.socket, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        sock, _ = listener.accept()
        with contextlib.suppress(OSError, Disconnected, ValueError):
            answer(sock, chance)
        leave(sock, chance)


def opened(port: int, path: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=STAYS)
    sock.sendall(fresh_request(path, "Sec-WebSocket-Extensions: permessage-deflate"))
    head = b""
    while b"\r\n\r\n" not in head and (data := sock.recv(4096)):
        head += data
    return sock


def discard(sock: socket.socket, seconds: float) -> None:
    """Reads until the other end has closed, or the time is over."""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        while time.monotonic() < end and sock.recv(65_536):
            pass


Trouble = Callable[[int, str, random.Random], socket.socket]


def heads(port: int, path: str, chance: random.Random) -> socket.socket:
    """Sends a part of a request, too much of one, or none at all."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=STAYS)
    whole = fresh_request(path, "Sec-WebSocket-Extensions: permessage-deflate")
    for data in [
        whole[: chance.randrange(len(whole))],
        b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000,
        b"",
        os.urandom(500),
        b"\x16\x03\x01" + os.urandom(100),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
    ][chance.randrange(6) :][:1]:
        sock.sendall(data)
    if chance.random() < 0.5:
        discard(sock, STAYS)
    return sock


def breaks(port: int, path: str, chance: random.Random) -> socket.socket:
    """Sends a frame that RFC 6455 forbids, whole or in part."""
    sock = opened(port, path)
    codec = Codec(masks=True, deflate=False)
    data = chance.choice(
        [
            codec.frame(3, b"reserved"), codec.frame(TEXT, b"\xff\xfe"), codec.frame(0, b"x"), b"\x81\x05hello",
            codec.frame(PING, b"x" * 126), codec.frame(8, b"\x03"), b"\x82\xff" + b"\xff" * 12, os.urandom(1000),
            codec.frame(TEXT, os.urandom(100), rsv=4), codec.frame(8, b"\xff\xff"), codec.frame(TEXT, b"x", fin=False),
        ]
    )  # fmt: skip
    sock.sendall(data[: chance.randrange(1, len(data) + 1)])
    discard(sock, chance.choice([0.0, 0.5, STAYS]))
    return sock


def floods(port: int, path: str, chance: random.Random) -> socket.socket:
    """Sends pings, fragments, bombs and messages as fast as possible, sometimes without reading."""
    sock = opened(port, path)
    codec = Codec(masks=True, deflate=False)
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = bomb.compress(bytes(900_000)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    data = chance.choice(
        [
            codec.frame(PING, b"x" * 100) * 2000,
            codec.frame(TEXT, b"", fin=False) + codec.frame(0, b"", fin=False) * 5000,
            codec.frame(TEXT, body[:-4], rsv=4) * 3,
            codec.frame(TEXT, b"x" * 10_000) * 50,
        ]
    )
    sock.settimeout(0.5)
    with contextlib.suppress(OSError):
        sock.sendall(data)
    if chance.random() < 0.7:
        discard(sock, 0.5)
    else:
        time.sleep(STAYS)
    return sock


def stays(port: int, path: str, chance: random.Random) -> socket.socket:
    """Stays silent after its handshake: it answers neither a ping nor a close frame."""
    sock = opened(port, path)
    time.sleep(chance.random() * 2 * STAYS)
    return sock


def speaks(port: int, path: str, chance: random.Random) -> socket.socket:
    """Behaves well, and leaves at random."""
    sock = opened(port, path)
    codec = Codec(masks=True, deflate=False)
    for _ in range(chance.randrange(5)):
        sock.sendall(codec.frame(TEXT, b"x" * chance.choice([1, 100, 70_000])))
        sock.recv(65_536)
    if chance.random() < 0.5:
        sock.sendall(codec.frame(8, b"\x03\xe8"))
        discard(sock, STAYS)
    return sock


TROUBLES: list[Trouble] = [heads, breaks, floods, stays, speaks]


def attack(targets: list[tuple[int, str]], seed: int) -> None:
    chance = random.Random(seed)
    while True:
        port, path = chance.choice(targets)
        with contextlib.suppress(OSError):
            leave(chance.choice(TROUBLES)(port, path, chance), chance)
        # Otherwise it would measure the machine.
        time.sleep(0.02)


def main(seed: str, *targets: str) -> None:
    """Runs until the input ends."""
    serve_in_thread(dict)
    if not targets:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        work: list[tuple[Callable[..., None], Any]] = [(serve, listener)] * AT_ONCE
        announce({"port": listener.getsockname()[1]})
    else:
        work = [(attack, [(int(port), path) for port, path in (one.split(",") for one in targets)])] * AT_ONCE
    for number, (target, argument) in enumerate(work):
        threading.Thread(target=target, args=[argument, int(seed) + number]).start()
