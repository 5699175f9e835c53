"""curl_cffi, the WebSocket of its asyncio sessions."""

from __future__ import annotations

import functools
from typing import Any

from models.connection import Client, Connection
from models.peer import main
from models.program import Library

# As in the benchmark of the library's author.
QUEUE = 256


@functools.cache
def session(ca: str | None) -> Any:
    """Returns the one session of this process: room for any number of connections, TLS by its own library."""
    from curl_cffi import AsyncSession

    return AsyncSession(max_clients=100_000, verify=ca or True, trust_env=False)


async def connect(url: str, ca: str | None, size: int, **options: Any) -> Connection:
    """Connects with the queues of the author's benchmark, and without a limit on size.

    `send` only queues; what it returns must be awaited nevertheless. `recv` returns payload and flags: both are
    compared. `close` sends a close frame, but does not wait for that of the server.
    """
    from curl_cffi import CurlWsFlag

    options = {"recv_queue_size": QUEUE, "send_queue_size": QUEUE, "max_message_size": max(1 << 26, size), **options}
    ws = await session(ca).ws_connect(url, **options)
    how = {"send_text": ws.send_str, "flush": ws.flush, "close": ws.close}
    return Connection(ws, ws.send, ws.recv, **how, encode=lambda message: (message, CurlWsFlag.BINARY))


async def merging(url: str, ca: str | None, size: int) -> Connection:
    """Connects so that messages which wait together leave as one: a frame with the bytes of all of them.

    Where one ends and the next begins the server cannot tell. So the bytes are checked, and what they hash to, but not
    how many messages they were.
    """
    connection = await connect(url, ca, size, coalesce_frames=True)
    connection.merges = True
    return connection


if __name__ == "__main__":
    # It has neither compression nor keepalive.
    client = Client(connect, closed=dict.fromkeys(("recv", "send"), "curl_cffi:WebSocketClosed"))
    styles = {"await": client, "coalesce": Client(merging, only=("send", "duplex", "transfer-out"))}
    main(Library("curl_cffi", "curl_cffi"), styles)
