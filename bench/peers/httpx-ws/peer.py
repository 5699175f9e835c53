"""httpx-ws, its asyncio client."""

from __future__ import annotations

import functools
from typing import Any

from models.abilities import Abilities, Patience, Watched
from models.asynchronous import main
from models.awaiting import Awaiting
from models.tls import tls_context


@functools.cache
def client(ca: str | None) -> Any:
    """Returns the one client of this process: it has no limit on connections and no timeouts."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(verify=tls_context(ca), trust_env=False, timeout=None, limits=limits)


async def open_with(url: str, ca: str | None, interval: float | None = None, timeout: float | None = None) -> Any:
    """Connects; compression it has none, and what it calls a limit on size is that of a read."""
    from httpx_ws import aconnect_ws

    context = aconnect_ws(
        url, client(ca), keepalive_ping_interval_seconds=interval, keepalive_ping_timeout_seconds=timeout
    )
    ws = await context.__aenter__()
    # What runs in the background ends when nobody holds this any more.
    ws.context = context
    return ws


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects without keepalive.

    `receive` returns an event: the whole is compared, which costs less than `receive_bytes`. What closes is the end of
    the block that its documentation connects in; the close frame of the server is not waited for.
    """
    from wsproto.events import BytesMessage

    ws = await open_with(url, ca)

    async def report() -> object:
        await ws.send_text("report")
        return await ws.receive_text()

    return Awaiting(
        ws,
        send=ws.send_bytes,
        recv=ws.receive,
        report=report,
        send_text=ws.send_text,
        close=lambda: ws.context.__aexit__(None, None, None),
        encode=lambda message: BytesMessage(data=message),
    )


async def watch(url: str, ca: str | None, patience: Patience) -> Watched:
    """Connects with the library's keepalive."""
    from httpx_ws import WebSocketNetworkError

    ws = await open_with(url, ca, patience.interval, patience.timeout)
    return Watched(ws, ws.receive, lambda told: isinstance(told, WebSocketNetworkError))


# `receive` tells of a close once, and then waits for ever; `send_bytes` raises an exception of wsproto.
ABILITIES = Abilities(watch=watch)

if __name__ == "__main__":
    main("httpx_ws", "httpx-ws", {"await": connect}, helpers=("httpx", "wsproto"), abilities={"await": ABILITIES})
