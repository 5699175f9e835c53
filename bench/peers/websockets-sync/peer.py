"""websockets, its threading client."""

from __future__ import annotations

import threading
from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.blocking import BASE, Blocking, main, text_report
from models.tls import tls_context


def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects as the library's documentation does, without what raw sockets do not do: compression, keepalive."""
    from websockets.sync.client import connect as library_connect

    plain: dict[str, Any] = {"compression": None, "ping_interval": None}
    client = library_connect(
        url,
        ssl=tls_context(ca) if url.startswith("wss:") else None,
        max_size=None,
        proxy=None,
        **(plain | options),
    )
    return client.__enter__()


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects."""
    return blocking(open_with(url, ca))


def deflate(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with compression as the library does by default: zlib's default level, memLevel 5, any window."""
    ws = open_with(url, ca, compression="deflate")
    check_deflate(ws.response.headers.get("Sec-WebSocket-Extensions"))
    return blocking(ws)


def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's keepalive, and a short `close_timeout`: by default it is 10 s, and `recv` waits."""
    from websockets.exceptions import ConnectionClosedError

    ws = open_with(
        url, ca, ping_interval=patience.interval, ping_timeout=patience.timeout, close_timeout=patience.timeout
    )
    return Watched(ws, ws.recv, lambda told: isinstance(told, ConnectionClosedError))


def serve() -> tuple[str, object]:
    """Serves without compression, keepalive and limits."""
    from websockets.sync.server import serve as library_serve

    def echo(ws: Any) -> None:
        for message in ws:
            ws.send(message)

    server = library_serve(echo, "127.0.0.1", 0, compression=None, ping_interval=None, max_size=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"ws://127.0.0.1:{server.socket.getsockname()[1]}/", server


def blocking(ws: Any) -> Blocking:
    """Returns what the loops drive of a connection."""
    return Blocking(
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        messages=ws,
        close=ws.close,
    )


ABILITIES = Abilities(
    deflate=deflate,
    closed={"recv": "websockets.exceptions:ConnectionClosed", "send": "websockets.exceptions:ConnectionClosed"},
    watch=watch,
    serve=serve,
)


if __name__ == "__main__":
    main("websockets", "websockets", connect, workloads=(*BASE, "duplex"), abilities=ABILITIES)
