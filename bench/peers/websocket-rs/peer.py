"""websocket-rs, its asyncio client."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
from typing import Any
from urllib.parse import urlsplit

from models.connection import Client, Connection, check_deflate, tls_context
from models.peer import main
from models.program import Library
from models.running import ask


async def connect(url: str, ca: str | None, size: int, **options: Any) -> Connection:
    """Connects with the defaults.

    `send` only queues, without any limit, and nothing tells when it has caught up. What does is an answer of /sink,
    which it waits for after each step of a sending loop, so that memory stays bounded. `close` sends a close frame, but
    does not wait for that of the server.
    """
    from websocket_rs import connect as library_connect

    ws = await library_connect(url, ssl_context=tls_context(url, ca), **options)
    connection = Connection(ws, ws.send, ws.recv, send_text=ws.send, messages=ws, close=ws.close)
    connection.drain = functools.partial(ask, connection)
    return connection


@functools.cache
def agreed(url: str, ca: str | None) -> str | None:
    """Returns the extensions that the server agrees to if it is offered what the library offers."""
    parts, context = urlsplit(url), tls_context(url, ca)
    secure, plain = http.client.HTTPSConnection, http.client.HTTPConnection
    connection = plain(parts.netloc) if context is None else secure(parts.netloc, context=context)
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        "Sec-WebSocket-Extensions": "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
    }
    with contextlib.closing(connection):
        connection.request("GET", parts.path or "/", headers=headers)
        return connection.getresponse().getheader("Sec-WebSocket-Extensions")


async def deflate(url: str, ca: str | None, size: int) -> Connection:
    """Connects with compression as the library does it: each message by itself, at both ends.

    It does not tell what the server answered, so the server is asked beforehand. A message that arrives compares with
    bytes, text or not.
    """
    check_deflate(agreed(url, ca))
    connection = await connect(url, ca, size, compression=True)
    connection.encode = lambda message: message.encode() if isinstance(message, str) else message
    return connection


if __name__ == "__main__":
    # It has no keepalive, and no exception of its own for a closed connection: it raises Python's.
    closed = {"recv": "builtins:ConnectionError", "send": "builtins:RuntimeError"}
    # Only an answer tells when sending has caught up, and in `duplex` the stream is in its way.
    client = Client(connect, deflate=deflate, closed=closed, without=("duplex",))
    styles = {"await": client, "iterate": Client(connect, "iterate")}
    main(Library("websocket_rs", "websocket-rs"), styles)
