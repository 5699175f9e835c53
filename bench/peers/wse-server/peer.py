"""wse-server, under load."""

from __future__ import annotations

from pathlib import Path

from peers.program import Library
from peers.serving import main

LIBRARIES = [Library("wse_server", "wse-server")]
WORKLOADS = ["echo-1", "echo-100", "echo-1000", "echo-100-picows", "fan-out-1000", "open", "idle"]

if __name__ == "__main__":
    main(Path(__file__).with_name("server.py"), LIBRARIES, WORKLOADS)
