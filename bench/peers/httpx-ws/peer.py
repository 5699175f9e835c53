"""httpx-ws, its asyncio client."""

from __future__ import annotations

import functools
from typing import Any

from models.connection import Client, Connection, tls_context
from models.peer import main
from models.program import Library


@functools.cache
def client(ca: str | None) -> Any:
    """Returns the one client of this process: it has no limit on connections and no timeouts."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(verify=tls_context("wss:", ca), trust_env=False, timeout=None, limits=limits)


async def open_with(url: str, ca: str | None, interval: float | None = None, timeout: float | None = None) -> Any:
    """Connects; compression it has none, and what it calls a limit on size is that of a read."""
    from httpx_ws import aconnect_ws

    keepalive = {"keepalive_ping_interval_seconds": interval, "keepalive_ping_timeout_seconds": timeout}
    context = aconnect_ws(url, client(ca), **keepalive)
    ws = await context.__aenter__()
    # The background task ends when this object is released.
    ws.context = context
    return ws


async def connect(url: str, ca: str | None, size: int) -> Connection:
    """Connects without keepalive.

    `receive` returns an event: the whole is compared, which costs less than `receive_bytes`. What closes is the end of
    the block that its documentation connects in; the close frame of the server is not waited for.
    """
    from wsproto.events import BytesMessage

    ws = await open_with(url, ca)
    how = {"send_text": ws.send_text, "close": lambda: ws.context.__aexit__(None, None, None)}
    return Connection(ws, ws.send_bytes, ws.receive, **how, encode=lambda message: BytesMessage(data=message))


if __name__ == "__main__":
    # `receive` reports a close once, and then hangs; `send_bytes` raises an exception of wsproto.
    main(Library("httpx_ws", "httpx-ws", ("httpx", "wsproto")), {"await": Client(connect)})
