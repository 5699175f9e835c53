"""Attacks that concern only the engine: tokens, limits, proxies, topics, and HTTP endpoints."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import os
import time
from collections.abc import Iterator

from campaigns.common.handshake import fresh_request as head
from support.frames import TEXT

from .talking import BINARY, repeat
from .target import METRICS_TOKEN, PAGE_TOKEN, PER_ADDRESS, SECRET, Several, Target


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header: dict[str, object], claims: dict[str, object], secret: str = SECRET) -> str:
    """Returns a token signed with HS256, for any header."""
    text = ".".join(part(json.dumps(piece).encode()) for piece in (header, claims))
    return f"{text}.{part(hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest())}"


def good_token(key: str | None = None) -> str:
    header: dict[str, object] = {"alg": "HS256"} if key is None else {"alg": "HS256", "kid": key}
    return signed(header, {"sub": "honest", "exp": int(time.time()) + 3600})


def refused(target: Target, path: str, *fields: str) -> None:
    """Requests a session, which must be refused."""
    with target.connect() as sock:
        data = target.ask(sock, head(path, *fields))
        # No bytes at all: the connection was closed because of a limit.
        if data and not data.startswith((b"HTTP/1.1 40", b"HTTP/1.1 42", b"HTTP/1.1 43")):
            raise AssertionError(f"answered with {data[:200]!r}")


def invalid_tokens(target: Target) -> Iterator[None]:
    """Invalid, foreign and expired tokens of all kinds."""
    claims: dict[str, object] = {"sub": "x", "exp": 2**33}
    none = part(b'{"alg":"none"}')
    tokens = [
        "x", f"{none}.{none}.", f"{none}.{none}.{none}", "a" * 7_000, f"{none}." * 300, "a" * 9_000, "." * 4_000,
        signed({"alg": "HS256"}, claims, "another secret of thirty-two bytes"), signed({"alg": "RS256"}, claims),
        signed({"alg": "HS256"}, {**claims, "exp": 1}), signed({"alg": "HS256"}, {"exp": 2**33}),
        signed({"alg": "HS256", "kid": "k" * 4_000}, claims, "another secret of thirty-two bytes"),
        signed({"alg": "HS256"}, {**claims, "exp": 1, "x": [[[[]]]] * 500}), f"{none}.{part(b'[' * 4_000)}.x",
    ]  # fmt: skip
    for number in itertools.count():
        token = tokens[number % len(tokens)]
        refused(target, "/", f"Authorization: Bearer {token}")
        yield


def unknown_keys(target: Target) -> Iterator[None]:
    """Each token names a key that no file contains."""
    claims: dict[str, object] = {"sub": "x"}
    for number in itertools.count():
        kid = f"key-{number}" if number % 2 else os.urandom(2_000).hex()
        token = signed({"alg": ("HS256", "ES256")[number % 3 == 0], "kid": kid}, claims)
        refused(target, "/", f"Authorization: Bearer {token}")
        yield


def origins(target: Target) -> Iterator[None]:
    """Foreign and invalid origins."""
    for number in itertools.count():
        origin = ("https://elsewhere.example", "null", "https://localhost.example", "x" * 8_000)[number % 4]
        refused(target, "/", f"Origin: {origin}")
        yield


def too_many_sessions(target: Target) -> Iterator[None]:
    """More sessions than an address may have, with forged addresses."""
    with Several() as socks:
        for number in itertools.count():
            fields = [f"X-Forwarded-For: 10.1.{number // 250 % 250}.{number % 250}", "Forwarded: for=10.2.3.4"]
            sock = target.connect()
            if target.ask(sock, head("/", *fields)).startswith(b"HTTP/1.1 101"):
                socks.append(sock)
            else:
                sock.close()
            if len(socks) > PER_ADDRESS:
                raise AssertionError(f"{len(socks)} sessions of one address")
            yield


def proxy_headers(target: Target) -> Iterator[None]:
    """PROXY headers of untrusted peers, and endless ones of a trusted proxy."""
    line = b"PROXY TCP4 10.1.2.3 10.1.2.4 1000 80\r\n"
    signature = b"\r\n\r\n\x00\r\nQUIT\n"
    believed = [
        b"PROXY TCP4 " + b"1" * 10_000, b"PROXY ", signature + b"\x21\x11\xff\xff" + bytes(70_000),
        signature + b"\xff\xff\x00\x00", signature[:5], line * 100, os.urandom(500),
    ]  # fmt: skip
    with Several() as socks:
        for number in itertools.count():
            with target.connect() as sock:
                if target.ask(sock, line + head()).startswith(b"HTTP/1.1 101"):
                    raise AssertionError("anybody may say who he is")
            sock = target.connect("127.0.0.4")
            socks.append(sock)
            target.push(sock, believed[number % len(believed)], 0.1)
            socks.reap(target)
            if len(socks) > 100:
                socks.pop(0).close()
            yield


def subscriptions(target: Target) -> Iterator[None]:
    """Endless topics: many, long, deep ones, all kinds of wildcards, and invalid ones."""
    codec = target.codec
    numbers = itertools.count()

    def topics() -> bytes:
        base = next(numbers)
        names = [f"{base}.{number}" for number in range(400)] + [
            f"{base}{number:03}" + "x" * 250 for number in range(400)
        ]
        names += [".".join(("*", "x")[number >> bit & 1] for bit in range(12)) + f".{base}" for number in range(400)]
        names += [".".join("x" * 120) + str(number) for number in range(100)]
        names += [f"{base}.{number}.>" for number in range(400)] + ["a..b", "", "x" * 5_000, "*.>.x"] * 10
        return b"".join(codec.frame(TEXT, name.encode()) for name in names)

    with Several() as socks:
        while True:
            socks.reap(target)
            if len(socks) < 100:
                socks.append(target.dial("/topics"))
            target.push(socks[-1], topics(), 0.5)
            yield


def relay_floods(target: Target) -> Iterator[None]:
    """A hundred clients in a room; five of them send without end, and none reads."""
    data = target.codec.frame(BINARY, b"x" * 4_000) * 100
    with Several() as socks:
        for number in itertools.count():
            socks.reap(target)
            while len(socks) < 100:
                socks.append(target.dial("/rooms/hall"))
            target.push(socks[number % 5], data, 0.05)
            yield


def limited_floods(target: Target) -> Iterator[None]:
    """Many times more messages than a session may send."""
    return repeat(target, target.codec.frame(TEXT, b"x" * 100) * 20_000, paths=("/slowed", "/dropped"))


def without_token(target: Target) -> Iterator[None]:
    """Requests for the metrics and the page without the token; for health checks from any client."""
    wrong = [
        "",
        "Authorization: Bearer x",
        f"Authorization: Bearer {METRICS_TOKEN}x",
        f"Authorization: Bearer {'x' * 9_000}",
    ]
    wrong += [f"Authorization: Basic {PAGE_TOKEN}", f"Authorization: Bearer {PAGE_TOKEN[:-1]}"]
    paths = ["/metrics", "/_wirespeed/figures", "/_wirespeed/sessions", "/_wirespeed/" + "x" * 3_000, "/health"]
    for number in itertools.count():
        path, field = paths[number % len(paths)], wrong[number % len(wrong)]
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{field}{chr(13) + chr(10) if field else ''}\r\n"
        with target.connect() as sock, contextlib.suppress(ConnectionResetError):
            data = target.ask(sock, request.encode())
            if b"wirespeed_sessions" in data or (data.startswith(b"HTTP/1.1 200") and path != "/health"):
                raise AssertionError(f"{path} is answered to anybody: {data[:200]!r}")
        yield
