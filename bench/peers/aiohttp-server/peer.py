"""aiohttp, server, under load."""

from __future__ import annotations

from pathlib import Path

from peers.program import Library
from peers.serving import main

LIBRARIES = [Library("aiohttp", "aiohttp")]
WORKLOADS = ["echo", "echo-picows", "open", "idle"]

if __name__ == "__main__":
    main(Path(__file__).with_name("server.py"), LIBRARIES, WORKLOADS)
