"""wse-server, under load."""

from __future__ import annotations

from pathlib import Path

from models.program import Library
from serving.peer import main

LIBRARIES = [Library("wse_server", "wse-server")]
# Not `hold`: its pings are messages of its own, in JSON, and not those of the protocol.
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
# In these styles it differs in them only.
LIMITED = {"topics": ["fan-out", "publish"], "decode": ["sink"]}

if __name__ == "__main__":
    # Of each connection it keeps a second descriptor. A message that begins with M: or the like is one of its
    # protocol: numbers at the beginning would be that one day.
    server = Path(__file__).with_name("server.py")
    main(
        server,
        LIBRARIES,
        WORKLOADS,
        deflate=False,
        token_styles=["jwt"],
        descriptors=2,
        plain="msgpack",
        plain_by_style={"topics": "text"},
        greets=True,
        limited=LIMITED,
    )
