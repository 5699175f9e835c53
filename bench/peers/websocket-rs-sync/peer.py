"""websocket-rs, its blocking client."""

from __future__ import annotations

import os

from models.connection import Client, Connection
from models.peer import main
from models.program import Library


def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects with the defaults; the client has no option for a CA, but reads this variable at the first wss URL.

    `close` sends a close frame, but does not wait for that of the server.
    """
    from websocket_rs.sync.client import connect as library_connect

    if ca is not None:
        os.environ["SSL_CERT_FILE"] = ca
    ws = library_connect(url)
    return Connection(ws, ws.send, ws.recv, send_text=ws.send, messages=ws, close=ws.close)


if __name__ == "__main__":
    # It has neither compression nor keepalive, and no exception of its own for a closed connection: it raises Python's.
    client = Client(connect, closed=dict.fromkeys(("recv", "send"), "builtins:RuntimeError"))
    main(Library("websocket_rs", "websocket-rs"), client)
