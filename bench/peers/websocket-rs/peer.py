"""websocket-rs, its asyncio client."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
from typing import Any
from urllib.parse import urlsplit

from models.abilities import Abilities, check_deflate
from models.asynchronous import main
from models.awaiting import Awaiting, text_report
from models.tls import tls_context


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with the defaults.

    `send` only queues, without any limit, and nothing tells when it has caught up. What does is an answer of /sink,
    which it waits for after each step of a sending loop, so that memory stays bounded. `close` sends a close frame, but
    does not wait for that of the server.
    """
    ws = await open_with(url, ca)
    report = text_report(ws.send, ws.recv)
    return Awaiting(
        ws, send=ws.send, recv=ws.recv, report=report, send_text=ws.send, messages=ws, drain=report, close=ws.close
    )


async def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects with the defaults."""
    from websocket_rs import connect as library_connect

    return await library_connect(url, ssl_context=tls_context(ca) if url.startswith("wss:") else None, **options)


@functools.cache
def agreed(url: str, ca: str | None) -> str | None:
    """Returns the extensions that the server agrees to if it is offered what the library offers."""
    parts = urlsplit(url)
    connection = (
        http.client.HTTPSConnection(parts.netloc, context=tls_context(ca))
        if parts.scheme == "wss"
        else http.client.HTTPConnection(parts.netloc)
    )
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


async def deflate(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with compression as the library does it: each message by itself, at both ends.

    It does not tell what the server answered, so the server is asked beforehand. A message that arrives compares with
    bytes, text or not.
    """
    check_deflate(agreed(url, ca))
    ws = await open_with(url, ca, compression=True)
    report = text_report(ws.send, ws.recv)
    return Awaiting(ws, send=ws.send, recv=ws.recv, report=report, drain=report, close=ws.close, encode=str.encode)


# On a closed connection it raises Python's own ConnectionError and RuntimeError; it has no keepalive.
ABILITIES = Abilities(deflate=deflate)


if __name__ == "__main__":
    main("websocket_rs", "websocket-rs", {"await": connect, "iterate": connect}, abilities={"await": ABILITIES})
