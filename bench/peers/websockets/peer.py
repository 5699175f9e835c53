"""websockets, its asyncio client, as in its documentation. Its compression has a memLevel of 5."""

from __future__ import annotations

import dataclasses
from typing import Any

from models.asynchronous import main
from models.websockets_interface import Interface


async def serve() -> tuple[str, object]:
    """Serves without compression, keepalive and limits."""
    from websockets.asyncio.server import serve as library_serve

    async def echo(ws: Any) -> None:
        async for message in ws:
            await ws.send(message)

    server = await library_serve(echo, "127.0.0.1", 0, compression=None, ping_interval=None, max_size=None)
    return f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", server


if __name__ == "__main__":
    library = Interface("websockets.asyncio.client", "websockets.exceptions")
    styles = {"await": library.connect, "iterate": library.connect}
    abilities = dataclasses.replace(library.abilities, serve=serve)
    main("websockets", "websockets", styles, abilities={"await": abilities})
