"""A server of bare system calls in C, under load."""

from __future__ import annotations

from serving.peer import main

WORKLOADS = ("echo", "echo-picows", "burst", "sink", "fan-out", "publish", "open", "touch", "storm")

if __name__ == "__main__":
    # Its messages have 256 KiB at most, and it sends no pings.
    main(None, [], WORKLOADS, deflate=False)
