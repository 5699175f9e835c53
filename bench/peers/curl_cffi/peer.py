"""curl_cffi, the WebSocket of its asyncio sessions."""

from __future__ import annotations

import functools
from typing import Any

from models.abilities import Abilities
from models.asynchronous import main
from models.awaiting import Awaiting

# As in the benchmark of the library's author.
QUEUE = 256


@functools.cache
def session(ca: str | None) -> Any:
    """Returns the one session of this process: room for any number of connections, TLS by its own library."""
    from curl_cffi import AsyncSession

    return AsyncSession(max_clients=100_000, verify=ca or True, trust_env=False)


async def connect(url: str, ca: str | None, size: int) -> Awaiting:
    """Connects with the queues of the author's benchmark, and without a limit on size.

    `send` only queues; what it returns must be awaited nevertheless. `recv` returns payload and flags: both are
    compared. `close` sends a close frame, but does not wait for that of the server.
    """
    from curl_cffi import CurlWsFlag

    ws = await session(ca).ws_connect(
        url, recv_queue_size=QUEUE, send_queue_size=QUEUE, max_message_size=max(1 << 26, size)
    )

    async def report() -> object:
        await ws.send_str("report")
        return (await ws.recv())[0]

    return Awaiting(
        ws,
        send=ws.send,
        recv=ws.recv,
        report=report,
        send_text=ws.send_str,
        flush=ws.flush,
        close=ws.close,
        encode=lambda message: (message, CurlWsFlag.BINARY),
    )


CLOSED = "curl_cffi:WebSocketClosed"
# It has neither compression nor keepalive.
ABILITIES = Abilities(closed={"recv": CLOSED, "send": CLOSED})

if __name__ == "__main__":
    main("curl_cffi", "curl_cffi", {"await": connect}, abilities={"await": ABILITIES})
