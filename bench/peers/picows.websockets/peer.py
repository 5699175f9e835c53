"""picows, its module `websockets`, which has the interface of that library, as in the benchmark of its author."""

from __future__ import annotations

from models.interface import Interface
from models.peer import main
from models.program import Library

if __name__ == "__main__":
    library = Interface("picows.websockets", "picows.websockets", "picows.websockets", {"max_queue": None})
    styles = {style: library.client_of(style, serve=None) for style in ("await", "iterate")}
    main(Library("picows", "picows", ("aiofastnet",)), styles)
