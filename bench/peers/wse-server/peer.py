"""wse-server, under load."""

from __future__ import annotations

from pathlib import Path

from peers.program import Library
from peers.serving import main

LIBRARIES = [Library("wse_server", "wse-server")]
WORKLOADS = ["echo", "echo-picows", "fan-out", "open", "idle"]

if __name__ == "__main__":
    main(Path(__file__).with_name("server.py"), LIBRARIES, WORKLOADS)
