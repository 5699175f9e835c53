"""websocket-client, its blocking `WebSocket`."""

from __future__ import annotations

from typing import Any

from models.connection import Client, Connection, tls_context
from models.peer import main
from models.program import Library


def tls(url: str, ca: str | None) -> dict[str, Any]:
    """Returns the library's option for TLS."""
    context = tls_context(url, ca)
    return {"sslopt": {"context": context} if context is not None else None}


def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects without the lock for several threads, which one thread does not need, and without a timeout.

    With one, Python's sockets would poll before each system call.
    """
    import websocket

    ws = websocket.create_connection(url, enable_multithread=False, **tls(url, ca))
    return Connection(ws, ws.send_binary, ws.recv, send_text=ws.send, messages=ws, close=ws.close)


if __name__ == "__main__":
    closed = dict.fromkeys(("recv", "send"), "websocket:WebSocketConnectionClosedException")
    # It has no compression.
    main(Library("websocket", "websocket-client", ("wsaccel",)), Client(connect, closed=closed))
