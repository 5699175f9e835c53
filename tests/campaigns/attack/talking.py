"""Attacks by connected clients: invalid frames of every kind, and too many valid ones."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator

from support.frames import CLOSE, CONT, PING, TEXT

from .target import Several, Target

BINARY = 2


def bomb(size: int) -> bytes:
    """Zeros, compressed to a thousandth."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflate.compress(bytes(size)) + deflate.flush(zlib.Z_SYNC_FLUSH))[:-4]


def breakers(target: Target) -> Iterator[None]:
    """Frames that RFC 6455 forbids, and bytes that are not frames."""
    codec = target.codec
    wrong = [
        codec.frame(3, b"reserved"), codec.frame(TEXT, b"x", rsv=2), codec.frame(TEXT, b"\xff\xfe"),
        codec.frame(CONT, b"x"), codec.frame(PING, b"x" * 126), codec.frame(PING, b"x", fin=False),
        codec.frame(8, b"\x03"), b"\x81\x05hello", b"\x82\xff" + b"\xff" * 12, os.urandom(5000),
    ]  # fmt: skip
    for data in itertools.cycle(wrong):
        with target.dial() as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
            target.read_out(sock)
        yield


def announcers(target: Target) -> Iterator[None]:
    """Messages whose header announces more than arrives: the maximum size, and more than that."""
    key = bytes(4)
    accepted = b"\x82\xff" + (2**20).to_bytes(8, "big") + key
    refused = b"\x82\xff" + (2**40).to_bytes(8, "big") + key
    with Several() as socks:
        for number in itertools.count():
            socks.append(target.dial())
            target.push(socks[-1], accepted + bytes(2**20 - 1) if number % 2 else refused + bytes(2**21), 0.2)
            socks.reap(target)
            if len(socks) > 20:
                socks.pop(0).close()
            yield


def repeat(
    target: Target, many: bytes, *fields: str, paths: tuple[str, ...] = ("/",), seconds: float = 0.1
) -> Iterator[None]:
    """Sends the same bytes on four connections in turn, without reading; closed connections are reopened."""
    with Several() as socks:
        for number in range(4):
            socks.append(target.dial(paths[number % len(paths)], *fields))
        for number in itertools.count():
            at = number % len(socks)
            if not target.push(socks[at], many, seconds):
                socks.renew(at, target.dial(paths[at % len(paths)], *fields))
            yield


def paths_of(target: Target) -> tuple[str, ...]:
    """Paths that echo messages: the engine has a separate echo."""
    return ("/", "/echo") if target.kind.startswith("engine") else ("/",)


def alternate(target: Target, accepted: bytes, refused: bytes, *fields: str) -> Iterator[None]:
    """Sends valid messages continuously on three connections without reading; and invalid ones on new connections, one
    by one.
    """
    paths = paths_of(target)
    with Several() as socks:
        socks += [target.dial(paths[number % len(paths)], *fields) for number in range(3)]
        for number in itertools.count():
            if not target.push(socks[number % 3], accepted, 0.1):
                socks.renew(number % 3, target.dial("/", *fields))
            with target.dial("/", *fields) as sock:
                target.push(sock, refused, 0.1)
                target.read_out(sock)
            yield


def bombs(target: Target) -> Iterator[None]:
    """Messages of a kibibyte that inflate to the maximum size, continuously; and ones that inflate to twenty times
    that.
    """
    accepted = target.codec.frame(TEXT, bomb(2**20 - 100), rsv=4) * 50
    refused = target.codec.frame(TEXT, bomb(20 * 2**20), rsv=4)
    offer = "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover"
    return alternate(target, accepted, refused, offer)


def pings(target: Target) -> Iterator[None]:
    """Thousands of pings, whose pongs are not read."""
    return repeat(target, target.codec.frame(PING, b"x" * 125) * 2_000, paths=paths_of(target))


def floods(target: Target) -> Iterator[None]:
    """Tiny messages without a pause."""
    return repeat(target, target.codec.frame(TEXT, b"x") * 20_000, paths=paths_of(target))


def growers(target: Target) -> Iterator[None]:
    """Documents that a codec expands forty times, for handlers that do not return."""
    document = b"[" + b",".join([b"{}"] * 60_000) + b"]"
    return repeat(target, target.codec.frame(TEXT, document), paths=("/hangs",), seconds=0.02)


def fragments(target: Target) -> Iterator[None]:
    """Messages of thousands of fragments, with no byte or one; and some with too many, which never end."""
    codec = target.codec
    first, end = codec.frame(TEXT, b"", fin=False), codec.frame(CONT, b"")
    accepted = first + codec.frame(CONT, b"x", fin=False) * 4_000 + end
    return alternate(target, accepted * 3, first + codec.frame(CONT, b"", fin=False) * 20_000)


def closes(target: Target) -> Iterator[None]:
    """Thousands of close frames, from clients that then neither read nor leave."""
    codec = target.codec
    many = codec.frame(CLOSE, b"\x03\xe8" + b"x" * 123) * 2_000
    with Several() as socks:
        for number in itertools.count():
            socks.append(target.dial())
            target.push(socks[-1], many if number % 2 else codec.frame(CLOSE, b""), 0.1)
            socks.reap(target)
            if len(socks) > 300:
                socks.pop(0).close()
            yield


def drips(target: Target) -> Iterator[None]:
    """Messages that arrive a byte at a time."""
    data = target.codec.frame(TEXT, b"x" * 100)
    with Several() as socks:
        socks += [target.dial() for _ in range(50)]
        for at in itertools.cycle(range(len(data))):
            for sock in socks:
                sock.send(data[at : at + 1])
            yield


def slow_readers(target: Target, path: str, data: bytes) -> Iterator[None]:
    """Sixteen clients that send requests and read nothing."""
    with Several() as socks:
        for number in itertools.count():
            socks.reap(target)
            if len(socks) < 16:
                socks.append(target.dial(path))
            target.push(socks[number % len(socks)], data, 0.05)
            yield


def deaf_echo(target: Target) -> Iterator[None]:
    return slow_readers(target, "/", target.codec.frame(TEXT, b"x" * 60_000) * 200)


def deaf_big(target: Target) -> Iterator[None]:
    return slow_readers(target, "/big", target.codec.frame(TEXT, b"x") * 1_000)


def silent_subscribers(target: Target) -> Iterator[None]:
    """Beside a client that reads a topic, one at a time that reads nothing; they reconnect all the time."""
    with target.dial("/feed") as reader:
        reading = threading.Thread(target=read_all, args=[reader])
        reading.start()
        try:
            while True:
                with target.dial("/feed"):
                    time.sleep(0.5)
                    yield
        finally:
            reader.shutdown(socket.SHUT_RDWR)
            reading.join()


def read_all(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(2**20):
            pass


def slow_broadcast_readers(target: Target) -> Iterator[None]:
    """Fifty clients that do not read the messages that one of them sends to all."""
    data = target.codec.frame(BINARY, b"x" * 16_000) * 20
    with Several() as socks:
        for number in itertools.count():
            socks.reap(target)
            while len(socks) < 50:
                socks.append(target.dial("/news"))
            target.push(socks[number % 5], data, 0.1)
            yield
