"""picows, its module `websockets`, which has the interface of that library."""

from __future__ import annotations

from typing import Any

from models.abilities import Abilities, Patience, Watched, check_deflate
from models.asynchronous import main
from models.awaiting import Awaiting, text_report
from models.tls import tls_context


async def open_with(url: str, ca: str | None, **options: Any) -> Any:
    """Connects as the benchmark of the library's author does: no compression, no keepalive, no limits."""
    from picows.websockets import connect as library_connect

    plain: dict[str, Any] = {"compression": None, "ping_interval": None}
    return await library_connect(
        url,
        ssl=tls_context(ca) if url.startswith("wss:") else None,
        max_size=None,
        max_queue=None,
        proxy=None,
        **(plain | options),
    )


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects for awaiting."""
    return awaiting(await open_with(url, ca))


async def deflate(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with compression as the library does by default: zlib's default level and memLevel, any window."""
    ws = await open_with(url, ca, compression="deflate")
    check_deflate(ws.response.headers.get("Sec-WebSocket-Extensions"))
    return awaiting(ws)


async def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's keepalive, and a short `close_timeout`: by default it is 10 s, and `recv` waits."""
    from picows.websockets import ConnectionClosedError

    ws = await open_with(
        url, ca, ping_interval=patience.interval, ping_timeout=patience.timeout, close_timeout=patience.timeout
    )
    return Watched(ws, ws.recv, lambda told: isinstance(told, ConnectionClosedError))


def awaiting(ws: Any) -> Awaiting:
    """Returns what the loops drive of a connection."""
    return Awaiting(
        ws,
        send=ws.send,
        recv=ws.recv,
        report=text_report(ws.send, ws.recv),
        send_text=ws.send,
        messages=ws,
        close=ws.close,
    )


ABILITIES = Abilities(
    deflate=deflate,
    closed={"recv": "picows.websockets:ConnectionClosed", "send": "picows.websockets:ConnectionClosed"},
    watch=watch,
)

if __name__ == "__main__":
    main(
        "picows",
        "picows",
        {"await": connect, "iterate": connect},
        helpers=("aiofastnet",),
        abilities={"await": ABILITIES},
    )
