"""Servers that make a client reconnect, as scripts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from .frames import Close, close, text
from .scripted import Wire

__all__ = ["at_once", "close_with", "echo_close", "in_turn", "refuse"]


def at_once() -> Iterable[float]:
    """Delays between attempts: none."""
    return itertools.repeat(0.0)


def close_with(code: int | None) -> Callable[[Wire], Close | None]:
    """A server that accepts a connection and closes it."""

    def script(wire: Wire) -> Close | None:
        wire.accept(then=text("hello") + close(code))
        return wire.read_until_close()[1]

    return script


def echo_close(wire: Wire) -> Close | None:
    """A server that waits to be closed."""
    wire.accept(then=text("hello"))
    received = wire.read_until_close()[1]
    if received is not None:
        wire.send(close(received.code))
    return received


def in_turn(*scripts: Callable[[Wire], Any]) -> Callable[[Wire], Any]:
    """A different script for each connection, the last one for all further ones."""
    turns = itertools.chain(scripts, itertools.repeat(scripts[-1]))
    return lambda wire: next(turns)(wire)


def refuse(wire: Wire, status: int = 503) -> None:
    wire.read_request()
    wire.send(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
