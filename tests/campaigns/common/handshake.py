"""The peer's end of the opening handshake, as bytes."""

from __future__ import annotations

import base64
import os
import re

from support.scripted import accept_key
from support.serving import request


def fresh_request(path: str = "/", *fields: str) -> bytes:
    """Returns a request with a key of its own."""
    return request(path, f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}", *fields)


def acceptance(head: bytes, *fields: str) -> bytes:
    """Returns the response that accepts a request, with further fields."""
    key = re.search(rb"(?im)^sec-websocket-key: *(\S+)", head)
    assert key is not None, head
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Accept: {accept_key(key[1].decode())}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()
