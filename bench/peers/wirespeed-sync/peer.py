"""wirespeed, its blocking client."""

from __future__ import annotations

import functools
import threading
from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.blocking import BASE, Blocking, main, text_report


@functools.cache
def tls(ca: str | None) -> Any:
    """Returns the native TLS settings, one object for all connections."""
    import wirespeed

    return wirespeed.TLS(ca=ca)


def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects with native TLS, without what raw sockets do not do: compression, keepalive."""
    from wirespeed.sync import connect as library_connect

    plain: dict[str, Any] = {"compression": None, "ping_interval": None}
    return library_connect(
        url,
        ssl=tls(ca) if url.startswith("wss:") else None,
        max_size=None,
        proxy=None,
        **(plain | options),
    )


def connect(url: str, ca: str | None, size: int) -> Blocking:
    """Connects."""
    return blocking(open_with(url, ca))


def deflate(url: str, ca: str | None, size: int) -> Blocking:
    """Connects with compression as the library does by default: level 6, memory level 5, any window."""
    ws = open_with(url, ca, compression="deflate")
    check_deflate(ws.response.headers.get("Sec-WebSocket-Extensions"))
    return blocking(ws)


def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's keepalive: told at the end of `ping_timeout`, `close_timeout` is not waited for."""
    import wirespeed

    ws = open_with(
        url, ca, ping_interval=patience.interval, ping_timeout=patience.timeout, close_timeout=patience.timeout
    )
    return Watched(ws, ws.recv, lambda told: isinstance(told, wirespeed.ConnectionClosedError))


def serve() -> tuple[str, object]:
    """Serves without compression, keepalive and limits."""
    from wirespeed.sync import serve as library_serve

    def echo(ws: Any) -> None:
        for message in ws:
            ws.send(message)

    server = library_serve(echo, "127.0.0.1", 0, compression=None, ping_interval=None, max_size=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", server


def blocking(ws: Any) -> Blocking:
    """Returns what the loops drive of a connection."""
    return Blocking(
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        messages=ws,
        recv_many=ws.recv_many,
        send_many=ws.send_many,
        close=ws.close,
    )


ABILITIES = Abilities(
    deflate=deflate,
    closed={"recv": "wirespeed:ConnectionClosed", "send": "wirespeed:ConnectionClosed"},
    watch=watch,
    serve=serve,
)

if __name__ == "__main__":
    workloads = (*BASE, "stream-in-many", "send-many", "duplex")
    main("wirespeed", "wirespeed", connect, workloads=workloads, abilities=ABILITIES)
