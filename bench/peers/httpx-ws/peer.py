"""httpx-ws, its asyncio client."""

from __future__ import annotations

import functools
from typing import Any

from peers.asynchronous import main
from peers.awaiting import Awaiting
from peers.tls import tls_context


@functools.cache
def client(ca: str | None) -> Any:
    """Returns the one client of this process: it has no limit on connections and no timeouts."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(verify=tls_context(ca), trust_env=False, timeout=None, limits=limits)


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects without keepalive; compression it has none, and what it calls a limit on size is that of a read.

    `receive` returns an event: the whole is compared, which costs less than `receive_bytes`.
    """
    from httpx_ws import aconnect_ws
    from wsproto.events import BytesMessage

    context = aconnect_ws(url, client(ca), keepalive_ping_interval_seconds=None)
    ws = await context.__aenter__()
    # What runs in the background ends when nobody holds this any more.
    ws.context = context

    async def report() -> object:
        await ws.send_text("report")
        return await ws.receive_text()

    return Awaiting(
        ws,
        send=ws.send_bytes,
        recv=ws.receive,
        report=report,
        encode=lambda message: BytesMessage(data=message),
    )


if __name__ == "__main__":
    main("httpx_ws", "httpx-ws", {"await": connect}, helpers=("httpx", "wsproto"))
