"""Wrong and right keyword arguments of ``connect`` as tables, for every kind of client."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["GOOD", "HANDSHAKE_HEADERS", "WRONG_TYPES", "WRONG_VALUES", "cases"]

WRONG_TYPES: dict[str, list[Any]] = {
    "origin": [1, b"https://example.com", ["https://example.com"]],
    "subprotocols": ["chat", b"chat", 1, [1]],
    "compression": [1, True, ["deflate"]],
    "additional_headers": [1, "X: y", [1], {"X": 1}, {1: "y"}],
    "user_agent_header": [1, b"agent", True],
    "proxy": [1, b"http://localhost", ["http://localhost"]],
    "open_timeout": ["1", [1], True],
    "ping_interval": ["1", ...],
    "ping_timeout": ["1", ...],
    "close_timeout": ["1", ...],
    "max_size": ["1", 1.5, [1]],
    "max_fragments": ["1", 1.5],
    "max_queue": ["1", 1.5],
    "ssl": [1, "yes", ...],
    "server_hostname": [1, b"localhost"],
    "sock": [1, "socket", ...],
    "local_addr": ["127.0.0.1", 1],
}

WRONG_VALUES: dict[str, list[Any]] = {
    "origin": ["https://example.com\r\nX-Evil: 1", "https://example.com\n"],
    "subprotocols": [["two words"], ["chat", "chat"], [""], ["a,b"]],
    "compression": ["gzip", ""],
    "additional_headers": [{"X": "a\r\nX-Evil: 1"}, {"X\r\nX-Evil": "1"}, {"": "x"}, {"X Y": "z"}, {"X:": "z"}],
    "user_agent_header": ["a\r\nX-Evil: 1"],
    "open_timeout": [-1, float("nan")],
    "ping_interval": [-1, float("nan")],
    "ping_timeout": [-1, float("nan")],
    "close_timeout": [-1, float("nan")],
    "max_size": [-1],
    "max_fragments": [-1, 0],
    "max_queue": [-1],
}


HANDSHAKE_HEADERS = [
    "Upgrade",
    "Connection",
    "Sec-WebSocket-Key",
    "sec-websocket-version",
    "Sec-WebSocket-Extensions",
]

GOOD: list[dict[str, Any]] = [
    {"open_timeout": 1},
    {"open_timeout": None, "ping_interval": None, "ping_timeout": None, "close_timeout": None},
    {"max_size": None, "max_fragments": None},
    {"max_size": 1000, "max_queue": 1},
    {"max_queue": (16, 4)},
    {"max_queue": None},
    {"max_size": (1 << 20, 1 << 16)},
    {"subprotocols": ()},
    {"additional_headers": None, "user_agent_header": None, "origin": None},
    {"proxy": None},
    {"proxy": True},
    {"compression": "deflate"},
    {"ping_interval": 0.5, "ping_timeout": 1.5, "close_timeout": 0.5},
]


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{value!r}".split(" object at ")[0][:60])
        for name, values in table.items()
        for value in values
    ]
