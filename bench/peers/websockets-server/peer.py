"""websockets, asyncio server, under load."""

from __future__ import annotations

from pathlib import Path

from models.program import Library
from serving.peer import main

if __name__ == "__main__":
    main(Path(__file__).with_name("server.py"), [Library("websockets", "websockets")])
