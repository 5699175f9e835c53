"""websockets, its asyncio client."""

from __future__ import annotations

from peers.asynchronous import main
from peers.awaiting import Awaiting, text_report
from peers.tls import tls_context


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects as the library's documentation does, without what raw sockets do not do: compression, keepalive."""
    from websockets.asyncio.client import connect as library_connect

    ws = await library_connect(
        url,
        ssl=tls_context(ca) if url.startswith("wss:") else None,
        compression=None,
        max_size=None,
        max_queue=None,
        ping_interval=None,
        proxy=None,
    )
    return Awaiting(ws, send=ws.send, recv=ws.recv, report=text_report(ws.send, ws.recv), messages=ws)


if __name__ == "__main__":
    main("websockets", "websockets", {"await": connect, "iterate": connect})
