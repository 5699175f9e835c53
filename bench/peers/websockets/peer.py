"""websockets, its asyncio client, as in its documentation. Its compression has a memLevel of 5."""

from __future__ import annotations

from models.interface import Interface
from models.peer import main
from models.program import Library

if __name__ == "__main__":
    names = ("websockets.asyncio.client", "websockets.asyncio.server", "websockets.exceptions")
    library = Interface(*names, {"max_queue": None})
    main(Library("websockets", "websockets"), {style: library.client_of(style) for style in ("await", "iterate")})
