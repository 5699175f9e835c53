"""aiohttp, the WebSocket client of its sessions."""

from __future__ import annotations

import functools
from typing import Any

from peers.asynchronous import main
from peers.awaiting import Awaiting
from peers.tls import tls_context


@functools.cache
def session() -> Any:
    """Returns the one session of this process: it has no limit on connections."""
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with the library's defaults, in which compression and keepalive are off, and without a limit on size.

    `receive` returns a tuple of type, content and flags: the whole is compared, which costs less than `receive_bytes`.
    """
    from aiohttp import WSMessage, WSMsgType

    ws = await session().ws_connect(url, ssl=tls_context(ca) if url.startswith("wss:") else True, max_msg_size=0)

    async def report() -> object:
        await ws.send_str("report")
        return (await ws.receive()).data

    return Awaiting(
        ws,
        send=ws.send_bytes,
        recv=ws.receive,
        report=report,
        messages=ws,
        encode=lambda message: WSMessage(WSMsgType.BINARY, message, ""),
    )


if __name__ == "__main__":
    # All that `pip install aiohttp[speedups]` brings.
    main("aiohttp", "aiohttp", {"await": connect, "iterate": connect}, helpers=("aiodns", "brotli", "backports.zstd"))
