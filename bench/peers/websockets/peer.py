"""websockets, its asyncio client, as in its documentation. Its compression has a memLevel of 5."""

from __future__ import annotations

from models.asynchronous import main
from models.websockets_interface import Interface

if __name__ == "__main__":
    library = Interface("websockets.asyncio.client", "websockets.exceptions")
    styles = {"await": library.connect, "iterate": library.connect}
    main("websockets", "websockets", styles, abilities={"await": library.abilities})
