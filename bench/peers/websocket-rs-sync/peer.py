"""websocket-rs, its blocking client."""

from __future__ import annotations

import os

from models.abilities import Abilities
from models.blocking import Blocking, main, text_report


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with the defaults; the client has no option for a CA, but reads this variable at the first wss URL.

    `close` sends a close frame, but does not wait for that of the server.
    """
    from websocket_rs.sync.client import connect as library_connect

    if ca is not None:
        os.environ["SSL_CERT_FILE"] = ca
    ws = library_connect(url)
    return Blocking(
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        messages=ws,
        close=ws.close,
    )


if __name__ == "__main__":
    # No compression, no keepalive; on a closed connection it raises Python's own RuntimeError.
    main("websocket_rs", "websocket-rs", connect, abilities=Abilities())
