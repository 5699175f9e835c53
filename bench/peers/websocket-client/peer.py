"""websocket-client, its blocking `WebSocket`."""

from __future__ import annotations

from peers.blocking import Blocking, main, text_report
from peers.tls import tls_context


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects without the lock for several threads, which one thread does not need, and without a timeout.

    With one, Python's sockets would poll before each system call.
    """
    import websocket

    ws = websocket.create_connection(
        url,
        enable_multithread=False,
        sslopt={"context": tls_context(ca)} if url.startswith("wss:") else None,
    )
    return Blocking(send=ws.send_binary, recv=ws.recv, report=text_report(ws.send, ws.recv), messages=ws)


if __name__ == "__main__":
    main("websocket", "websocket-client", connect, helpers=("wsaccel",))
