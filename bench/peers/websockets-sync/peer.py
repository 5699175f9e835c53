"""websockets, its threading client."""

from __future__ import annotations

from peers.blocking import Blocking, main, text_report
from peers.tls import tls_context


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects as the library's documentation does, without what raw sockets do not do: compression, keepalive."""
    from websockets.sync.client import connect as library_connect

    client = library_connect(
        url,
        ssl=tls_context(ca) if url.startswith("wss:") else None,
        compression=None,
        max_size=None,
        ping_interval=None,
        proxy=None,
    )
    ws = client.__enter__()
    return Blocking(send=ws.send, recv=ws.recv, report=text_report(ws.send, ws.recv), messages=ws)


if __name__ == "__main__":
    main("websockets", "websockets", connect)
