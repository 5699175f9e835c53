"""Programs that replace ``socket.socket``, as PySocks and gevent do."""

from __future__ import annotations

import socket
from typing import Any

import pytest

__all__ = ["REPLACEMENTS", "replace"]

REPLACEMENTS = ["class", "method"]
"""What such a program replaces."""


def replace(monkeypatch: pytest.MonkeyPatch, what: str) -> list[Any]:
    """Replaces the class, or its method ``connect``; returns the list of the addresses that it will be called with.

    Args:
        monkeypatch: Restores the original.
        what: One of :data:`REPLACEMENTS`.
    """
    addresses: list[Any] = []
    original = socket.socket

    def connect(sock: socket.socket, address: Any) -> None:
        addresses.append(address)
        super(original, sock).connect(address)

    if what == "method":
        monkeypatch.setattr(socket.socket, "connect", connect, raising=False)
    else:
        monkeypatch.setattr(socket, "socket", type("Replacement", (original,), {"connect": connect}))
    return addresses
