"""picows, its module `websockets`, which has the interface of that library, as in the benchmark of its author."""

from __future__ import annotations

from models.asynchronous import main
from models.websockets_interface import Interface

if __name__ == "__main__":
    library = Interface("picows.websockets", "picows.websockets")
    styles = {"await": library.connect, "iterate": library.connect}
    main("picows", "picows", styles, helpers=("aiofastnet",), abilities={"await": library.abilities})
