"""socketify, server, under load."""

from __future__ import annotations

from pathlib import Path

from models.program import Library
from serving.peer import main

LIBRARIES = [Library("socketify", "socketify")]
# Not `hold`: it cannot ping more often than every four seconds.
WORKLOADS = [
    "echo",
    "echo-picows",
    "burst",
    "sink",
    "fan-out",
    "publish",
    "open",
    "touch",
    "storm",
    "pings",
    "most",
    "idle",
]

if __name__ == "__main__":
    main(Path(__file__).with_name("server.py"), LIBRARIES, WORKLOADS)
