"""websocket-client, its blocking `WebSocket`."""

from __future__ import annotations

import threading
from typing import Any

from models.connection import Client, Connection, Watched, tls_context
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


def watch(url: str, ca: str | None, interval: float, timeout: float) -> Watched:
    """Connects by the library's `WebSocketApp`, which alone has a keepalive; a callback tells the end.

    It looks after each `ping_timeout` whether that is over, and every ping begins it anew: with one nearly as long as
    `ping_interval` it would take many pings until that is seen. So the same sum is made up of a quarter and the rest.
    """
    import websocket

    opened, ended = threading.Event(), threading.Event()
    told: list[object] = []

    def on_error(app: Any, error: object) -> None:
        told.append(error)
        opened.set()
        ended.set()

    def noticed() -> object:
        ended.wait()
        return told[0]

    app = websocket.WebSocketApp(url, on_open=lambda app: opened.set(), on_error=on_error)
    quarter = (interval + timeout) / 4
    options = {"ping_interval": 3 * quarter, "ping_timeout": quarter, **tls(url, ca)}
    threading.Thread(target=app.run_forever, kwargs=options, daemon=True).start()
    opened.wait()
    return Watched(app, noticed, lambda error: isinstance(error, websocket.WebSocketTimeoutException))


if __name__ == "__main__":
    closed = dict.fromkeys(("recv", "send"), "websocket:WebSocketConnectionClosedException")
    # It has no compression.
    main(Library("websocket", "websocket-client", ("wsaccel",)), Client(connect, closed=closed, watch=watch))
