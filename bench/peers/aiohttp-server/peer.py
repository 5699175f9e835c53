"""aiohttp, server, under load."""

from __future__ import annotations

from pathlib import Path

from peers.program import Library
from peers.serving import main

if __name__ == "__main__":
    main(Path(__file__).with_name("server.py"), [Library("aiohttp", "aiohttp")])
