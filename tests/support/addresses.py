"""Addresses to dial, good and bad ones, as pytest fixtures."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

__all__ = [
    "Resolve",
    "closed_port",
    "full_listener",
    "resolve",
    "silent_port",
]

Resolve = Callable[..., None]


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, so that no other process gets it, and not listening
        yield sock.getsockname()[1]


@contextlib.contextmanager
def full_listener() -> Iterator[tuple[int, Callable[[], None]]]:
    """Yields a port that does not answer, because the listener's backlog is full, and a function that makes room."""
    if sys.platform != "linux":
        pytest.skip("other systems refuse when the queue is full")
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket())
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fillers = [stack.enter_context(socket.socket()) for _ in range(2)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())

        def make_room() -> None:
            for _ in fillers:
                sock.accept()[0].close()

        yield sock.getsockname()[1], make_room


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Yields a port that does not answer."""
    with full_listener() as (port, _):
        yield port


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Makes every name resolve to these addresses."""

    def to(*addresses: tuple[str, int]) -> None:
        def getaddrinfo(*args: object, **kwargs: object) -> list[tuple[Any, ...]]:
            return [
                (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0))
                if ":" in host
                else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))
                for host, port in addresses
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return to
