"""websockets, its threading client, as in its documentation. Its compression has a memLevel of 5."""

from __future__ import annotations

from models.peer import main
from models.program import Library
from models.twins import blocking

if __name__ == "__main__":
    names = ("websockets.sync.client", "websockets.sync.server", "websockets.exceptions")
    library = blocking("models.interface").Interface(*names, {"max_queue": None})
    # Two threads may share a connection.
    main(Library("websockets", "websockets"), library.client_of(more=("duplex",)))
