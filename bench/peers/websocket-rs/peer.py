"""websocket-rs, its asyncio client."""

from __future__ import annotations

from peers.asynchronous import main
from peers.awaiting import Awaiting, text_report
from peers.tls import tls_context


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with the defaults.

    `send` only queues, without any limit, and nothing tells when it has caught up. What does is an answer of /sink,
    which it waits for after each step of a sending loop, so that memory stays bounded.
    """
    from websocket_rs import connect as library_connect

    ws = await library_connect(url, ssl_context=tls_context(ca) if url.startswith("wss:") else None)
    report = text_report(ws.send, ws.recv)
    return Awaiting(ws, send=ws.send, recv=ws.recv, report=report, messages=ws, drain=report)


if __name__ == "__main__":
    main("websocket_rs", "websocket-rs", {"await": connect, "iterate": connect})
