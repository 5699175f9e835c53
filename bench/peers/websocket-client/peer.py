"""websocket-client, its blocking `WebSocket`."""

from __future__ import annotations

import threading
from typing import Any

from models.abilities import Abilities, Patience, Watched
from models.blocking import Blocking, main, text_report
from models.tls import tls_context


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
    return Blocking(
        send=ws.send_binary,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        messages=ws,
        close=ws.close,
    )


def watch(url: str, ca: str | None, patience: Patience) -> Watched:
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
    quarter = (patience.interval + patience.timeout) / 4
    options = {
        "ping_interval": 3 * quarter,
        "ping_timeout": quarter,
        "sslopt": {"context": tls_context(ca)} if url.startswith("wss:") else None,
    }
    threading.Thread(target=app.run_forever, kwargs=options, daemon=True).start()
    opened.wait()
    return Watched(app, noticed, lambda error: isinstance(error, websocket.WebSocketTimeoutException))


CLOSED = "websocket:WebSocketConnectionClosedException"
# It has no compression.
ABILITIES = Abilities(closed={"recv": CLOSED, "send": CLOSED}, watch=watch)


if __name__ == "__main__":
    main("websocket", "websocket-client", connect, helpers=("wsaccel",), abilities=ABILITIES)
