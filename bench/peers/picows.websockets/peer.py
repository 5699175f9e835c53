"""picows, its module `websockets`, which has the interface of that library."""

from __future__ import annotations

from peers.asynchronous import main
from peers.awaiting import Awaiting, text_report
from peers.tls import tls_context


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects as the benchmark of the library's author does: no compression, no keepalive, no limits."""
    from picows.websockets import connect as library_connect

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
    main("picows", "picows", {"await": connect, "iterate": connect}, helpers=("aiofastnet",))
