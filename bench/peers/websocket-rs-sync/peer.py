"""websocket-rs, its blocking client."""

from __future__ import annotations

import os

from peers.blocking import Blocking, main, text_report


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with the defaults; the client has no option for a CA, but reads this variable at the first wss URL."""
    from websocket_rs.sync.client import connect as library_connect

    if ca is not None:
        os.environ["SSL_CERT_FILE"] = ca
    ws = library_connect(url)
    return Blocking(send=ws.send, recv=ws.recv, report=text_report(ws.send, ws.recv), messages=ws)


if __name__ == "__main__":
    main("websocket_rs", "websocket-rs", connect)
